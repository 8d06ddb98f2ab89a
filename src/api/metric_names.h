// The names of the server's metrics, vLLM's, so that its dashboards and our bench read either engine.
#pragma once

namespace spark::api::metric {

// Gauges.
inline constexpr const char* kRequestsRunning = "vllm:num_requests_running";
inline constexpr const char* kRequestsWaiting = "vllm:num_requests_waiting";
inline constexpr const char* kCacheUsage = "vllm:kv_cache_usage_perc";  // 0..1
inline constexpr const char* kPrefillBacklog = "vllm:scheduler_local_prefill_backlog_tokens";

// Counters.
inline constexpr const char* kRequestSuccess = "vllm:request_success_total";  // label finished_reason
inline constexpr const char* kPreemptions = "vllm:num_preemptions_total";
inline constexpr const char* kPrefixQueries = "vllm:prefix_cache_queries_total";
inline constexpr const char* kPrefixHits = "vllm:prefix_cache_hits_total";
inline constexpr const char* kPromptTokens = "vllm:prompt_tokens_total";
inline constexpr const char* kPromptTokensCached = "vllm:prompt_tokens_cached_total";
inline constexpr const char* kGenerationTokens = "vllm:generation_tokens_total";
inline constexpr const char* kDrafts = "vllm:spec_decode_num_drafts_total";
inline constexpr const char* kDraftTokens = "vllm:spec_decode_num_draft_tokens_total";
inline constexpr const char* kAcceptedTokens = "vllm:spec_decode_num_accepted_tokens_total";
// Label position.
inline constexpr const char* kDraftTokensPerPosition = "vllm:spec_decode_num_draft_tokens_per_pos_total";
inline constexpr const char* kAcceptedTokensPerPosition =
    "vllm:spec_decode_num_accepted_tokens_per_pos_total";

// Our own: rows of the Engram tables, which stay on disk. Rows count as often as steps ask for them.
inline constexpr const char* kEngramHits = "spark:engram_row_hits_total";
inline constexpr const char* kEngramAwaited = "spark:engram_row_awaited_total";
inline constexpr const char* kEngramMisses = "spark:engram_row_misses_total";
inline constexpr const char* kEngramPrefetched = "spark:engram_rows_prefetched_total";
inline constexpr const char* kEngramReads = "spark:engram_reads_total";
inline constexpr const char* kEngramReadBytes = "spark:engram_read_bytes_total";
inline constexpr const char* kEngramFailures = "spark:engram_read_failures_total";
inline constexpr const char* kEngramWait = "spark:engram_wait_seconds_total";

// Histograms.
inline constexpr const char* kIterationTokens = "vllm:iteration_tokens_total";
inline constexpr const char* kRequestPromptTokens = "vllm:request_prompt_tokens";
inline constexpr const char* kRequestGenerationTokens = "vllm:request_generation_tokens";
inline constexpr const char* kQueueTime = "vllm:request_queue_time_seconds";
inline constexpr const char* kTimeToFirstToken = "vllm:time_to_first_token_seconds";
inline constexpr const char* kInterTokenLatency = "vllm:inter_token_latency_seconds";
inline constexpr const char* kTimePerOutputToken = "vllm:time_per_output_token_seconds";
inline constexpr const char* kPrefillTime = "vllm:request_prefill_time_seconds";
inline constexpr const char* kDecodeTime = "vllm:request_decode_time_seconds";
inline constexpr const char* kRequestLatency = "vllm:e2e_request_latency_seconds";

// Labels.
inline constexpr const char* kModelLabel = "model_name";
inline constexpr const char* kFinishedLabel = "finished_reason";
inline constexpr const char* kPositionLabel = "position";  // of a draft in its block, from 0

}  // namespace spark::api::metric
