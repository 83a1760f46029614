#define _GNU_SOURCE
#include "json.h"

#include <string.h>

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

static struct span skip(struct span text, size_t size) { return (struct span){text.data + size, text.size - size}; }

static struct span skip_space(struct span text) {
    while (text.size && is_space(*text.data)) text = skip(text, 1);
    return text;
}

struct span json_value(struct span text, const char *name) {
    size_t length = strlen(name);
    while (text.data) {
        const char *found = memmem(text.data, text.size, name, length);
        if (!found) break;
        text = skip_space(skip(text, (size_t)(found - text.data) + length));
        if (text.size && *text.data == ':') return skip_space(skip(text, 1));
    }
    return (struct span){NULL, 0};
}

struct span json_object(struct span text) {
    int depth = 0;
    bool quoted = false;
    if (!text.size || *text.data != '{') return (struct span){NULL, 0};
    for (size_t i = 0; i < text.size; i++) {
        char c = text.data[i];
        if (c == '"') quoted = !quoted;
        if (quoted) continue;
        if (c == '{') depth++;
        if (c == '}' && --depth == 0) return (struct span){text.data, i + 1};
    }
    return (struct span){NULL, 0};
}

bool json_is(struct span value, const char *literal) {
    size_t length = strlen(literal);
    if (!value.data || value.size <= length || memcmp(value.data, literal, length)) return false;
    char next = value.data[length];
    return next == ',' || next == '}' || next == ']' || is_space(next);
}

bool json_has(struct span text, const char *name, const char *literal) {
    return json_is(json_value(text, name), literal);
}

int json_count(struct span text, const char *name) {
    int count = 0;
    for (text = json_value(text, name); text.data; text = json_value(text, name)) count++;
    return count;
}
