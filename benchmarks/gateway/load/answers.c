#include "answers.h"

#include <stdio.h>
#include <string.h>

static struct stream_bytes prepared[2];

static const char *reason(int status) {
    return status == 200 ? "OK" : status == 404 ? "Not Found" : status == 411 ? "Length Required" : "Bad Request";
}

void answer_json(struct buffer *out, int status, const char *body, size_t size) {
    char head[256];
    int length = snprintf(head, sizeof head,
                          "HTTP/1.1 %d %s\r\ndate: Thu, 01 Jan 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"
                          "content-length: %zu\r\ncontent-type: application/json\r\n\r\n",
                          status, reason(status), size);
    buffer_append(out, head, (size_t)length);
    buffer_append(out, body, size);
}

void answer_error(struct buffer *out, int status, const char *message) {
    char body[512];
    static const char SHAPE[] =
        "{\"error\":{\"message\":\"%s\",\"type\":\"BadRequestError\",\"param\":null,\"code\":%d}}";
    int size = snprintf(body, sizeof body, SHAPE, message, status);
    answer_json(out, status, body, (size_t)size);
}

void answer_completion(struct buffer *out, enum kind kind, int tokens, const char *params) {
    static const char *const CHOICE[] = {
        "{\"index\":0,\"text\":\" a token and another\",\"logprobs\":null,\"finish_reason\":\"length\","
        "\"stop_reason\":null,\"token_ids\":null,\"prompt_logprobs\":null,\"prompt_token_ids\":null}",
        "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\" a token and another\",\"refusal\":null,"
        "\"annotations\":null,\"audio\":null,\"function_call\":null,\"tool_calls\":[],\"reasoning\":null},"
        "\"logprobs\":null,\"finish_reason\":\"length\",\"stop_reason\":null,\"token_ids\":null}"};
    static const char *const ID[] = {"cmpl", "chatcmpl"}, *const OBJECT[] = {"text_completion", "chat.completion"};
    char body[2048];
    int size = snprintf(body, sizeof body,
                        "{\"id\":\"%s-bench-0123456789abcdef\",\"object\":\"%s\",\"created\":1767225600,"
                        "\"model\":\"bench\",\"choices\":[%s],\"service_tier\":null,\"system_fingerprint\":null,"
                        "\"usage\":{\"prompt_tokens\":1000,\"total_tokens\":%d,\"completion_tokens\":%d,"
                        "\"prompt_tokens_details\":null},\"kv_transfer_params\":%s}",
                        ID[kind], OBJECT[kind], CHOICE[kind], 1000 + tokens, tokens, params ? params : "null");
    answer_json(out, 200, body, (size_t)size);
}

static void append_chunk(struct buffer *out, const char *event) {
    char size[16];
    size_t length = strlen(event);
    buffer_append(out, size, (size_t)snprintf(size, sizeof size, "%zx\r\n", length));
    buffer_append(out, event, length);
    buffer_append(out, "\r\n", 2);
}

static void event_text(char *out, size_t size, enum kind kind, const char *delta, const char *finish) {
    static const char *const ID[] = {"cmpl", "chatcmpl"};
    static const char *const OBJECT[] = {"text_completion", "chat.completion.chunk"};
    snprintf(out, size,
             "data: {\"id\":\"%s-bench-0123456789abcdef\",\"object\":\"%s\",\"created\":1767225600,\"model\":\"bench\","
             "\"choices\":[{\"index\":0,%s,\"logprobs\":null,\"finish_reason\":%s,\"stop_reason\":null,"
             "\"token_ids\":null}]}\n\n",
             ID[kind], OBJECT[kind], delta, finish);
}

static void prepare(enum kind kind, int burst) {
    static const char HEAD[] = "HTTP/1.1 200 OK\r\ndate: Thu, 01 Jan 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"
                               "content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
    static const char *const DELTA[] = {"\"text\":\" token\"", "\"delta\":{\"content\":\" token\"}"};
    struct stream_bytes *bytes = &prepared[kind];
    char event[512];
    buffer_append(&bytes->head, HEAD, sizeof HEAD - 1);
    if (kind == CHAT) {
        event_text(event, sizeof event, kind, "\"delta\":{\"role\":\"assistant\",\"content\":\"\"}", "null");
        append_chunk(&bytes->head, event);
    }
    event_text(event, sizeof event, kind, DELTA[kind], "null");
    for (int i = 0; i < burst; i++) append_chunk(&bytes->events, event);
    bytes->event_size = buffer_size(&bytes->events) / (size_t)burst;
    event_text(event, sizeof event, kind, DELTA[kind], "\"length\"");
    append_chunk(&bytes->last, event);
    append_chunk(&bytes->last, "data: [DONE]\n\n");
    buffer_append(&bytes->last, "0\r\n\r\n", 5);
}

void answers_prepare(int burst) {
    prepare(COMPLETIONS, burst);
    prepare(CHAT, burst);
}

const struct stream_bytes *answers_stream(enum kind kind) { return &prepared[kind]; }
