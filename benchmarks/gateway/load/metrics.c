#include "metrics.h"

#include "answers.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

enum { BUCKETS = 20, BLOCKS = 100000, BLOCK_TOKENS = 16, TOKENS_OF_A_REQUEST = 1024 };

static const char LABELS[] = "engine=\"0\",model_name=\"bench\"";
/* Histograms that a real page has and that no gateway of the benchmark reads: they give the page its size. */
static const char *const OTHERS[] = {
    "iteration_tokens_total", "request_prompt_tokens", "request_generation_tokens", "request_queue_time_seconds",
    "request_prefill_time_seconds", "request_decode_time_seconds", "request_inference_time_seconds",
    "request_max_num_generation_tokens", "request_params_n", "request_params_max_tokens",
    "request_time_per_output_token_seconds", "request_prefill_kv_computed_tokens", "kv_block_lifetime_seconds",
    "kv_block_idle_before_evict_seconds", "kv_block_reuse_gap_seconds", "nixl_xfer_time_seconds",
    "nixl_post_time_seconds", "nixl_bytes_transferred", "nixl_num_descriptors"};

static void add(struct buffer *out, const char *format, ...) {
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (size > 0 && (size_t)size < sizeof line) buffer_append(out, line, (size_t)size);
}

static void add_gauge(struct buffer *out, const char *name, const char *more, double value) {
    add(out, "# HELP vllm:%s As in vLLM.\n# TYPE vllm:%s gauge\n", name, name);
    add(out, "vllm:%s{%s%s} %.9g\n", name, LABELS, more, value);
}

static void add_counter(struct buffer *out, const char *name, const char *more, uint64_t value) {
    add(out, "# HELP vllm:%s_total As in vLLM.\n# TYPE vllm:%s_total counter\n", name, name);
    add(out, "vllm:%s_total{%s%s} %" PRIu64 ".0\n", name, LABELS, more, value);
}

static void add_histogram(struct buffer *out, const char *name, uint64_t count, double sum) {
    add(out, "# HELP vllm:%s As in vLLM.\n# TYPE vllm:%s histogram\n", name, name);
    for (int i = 0; i < BUCKETS; i++)
        add(out, "vllm:%s_bucket{%s,le=\"%d.0\"} %" PRIu64 ".0\n", name, LABELS, 1 << i, count);
    add(out, "vllm:%s_bucket{%s,le=\"+Inf\"} %" PRIu64 ".0\n", name, LABELS, count);
    add(out, "vllm:%s_count{%s} %" PRIu64 ".0\nvllm:%s_sum{%s} %.9g\n", name, LABELS, count, name, LABELS, sum);
}

void metrics_answer(struct buffer *out, const struct load *load) {
    static struct buffer page;
    double seconds = (double)load->busy_ns / 1e9;
    double used = (double)load->running * TOKENS_OF_A_REQUEST / ((double)BLOCKS * BLOCK_TOKENS);
    uint64_t later = load->generated_tokens - load->finished;
    buffer_consume(&page, buffer_size(&page));
    add_gauge(&page, "num_requests_running", "", (double)load->running);
    add_gauge(&page, "num_requests_waiting", "", 0);
    add_gauge(&page, "num_requests_waiting_by_reason", ",reason=\"capacity\"", 0);
    add_gauge(&page, "num_requests_waiting_by_reason", ",reason=\"deferred\"", 0);
    add_gauge(&page, "kv_cache_usage_perc", "", used < 1 ? used : 1);
    add(&page, "vllm:cache_config_info{block_size=\"%d\",%s,num_gpu_blocks=\"%d\"} 1.0\n", BLOCK_TOKENS, LABELS, BLOCKS);
    add_counter(&page, "prompt_tokens", "", load->prompt_tokens);
    add_counter(&page, "prompt_tokens_by_source", ",source=\"local_compute\"", load->prompt_tokens);
    add_counter(&page, "prompt_tokens_by_source", ",source=\"external_kv_transfer\"", 0);
    add_counter(&page, "prefix_cache_queries", "", load->prompt_tokens);
    add_counter(&page, "prefix_cache_hits", "", 0);
    add_counter(&page, "generation_tokens", "", load->generated_tokens);
    add_counter(&page, "request_success", ",finished_reason=\"length\"", load->finished);
    add_histogram(&page, "e2e_request_latency_seconds", load->finished, seconds);
    add_histogram(&page, "time_to_first_token_seconds", load->finished, seconds / 2);
    add_histogram(&page, "inter_token_latency_seconds", later, seconds / 2);
    for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS; i++) add_histogram(&page, OTHERS[i], load->finished, seconds);
    answer_json(out, 200, buffer_begin(&page), buffer_size(&page));
}
