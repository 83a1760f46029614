/* Members of a JSON object, found by their quoted name: exact as long as no string value holds a quotation mark,
 * which is true of every body that the load generator writes. */
#ifndef JSON_H
#define JSON_H

#include <stdbool.h>
#include <stddef.h>

struct span {
    const char *data;
    size_t size;
};

/* The value of the first member `name` (quoted: "\"n\"") and everything behind it; no data when there is none. */
struct span json_value(struct span text, const char *name);
/* The object that begins the text, up to its closing brace; no data when the text begins with something else. */
struct span json_object(struct span text);
/* Whether a value begins with a literal. */
bool json_is(struct span value, const char *literal);
/* Whether a member has exactly this value. */
bool json_has(struct span text, const char *name, const char *literal);
/* How often a member is named. */
int json_count(struct span text, const char *name);

#endif
