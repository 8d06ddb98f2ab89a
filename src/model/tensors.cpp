#include "model/tensors.h"

#include <array>

#include "model/layer_plan.h"

namespace spark::model {
namespace {

struct Split {
  SplitOver over = SplitOver::kNothing;
  uint8_t axis = 0;
};

constexpr Split kFullCopy{};
constexpr Split kGroupRows{SplitOver::kGroups, 0};
constexpr Split kGroupColumns{SplitOver::kGroups, 1};
constexpr Split kExpertRows{SplitOver::kExpertWidth, 0};
constexpr Split kExpertColumns{SplitOver::kExpertWidth, 1};
constexpr Split kVocabularyRows{SplitOver::kVocabulary, 0};

class Catalogue {
 public:
  explicit Catalogue(const ModelConfig& config) : c_(config) {}

  std::vector<TensorEntry> take() { return std::move(entries_); }

  // Component of the entries added from here on.
  Catalogue& in(Component component) {
    component_ = component;
    return *this;
  }

  // Layer of the entries added from here on.
  void at_layer(int64_t layer) { layer_ = static_cast<int32_t>(layer); }

  void plain(std::string name, Dtype dtype, std::vector<int64_t> shape, Split split = kFullCopy,
             bool required = true) {
    entries_.push_back(
        {std::move(name), dtype, std::move(shape), component_, split.over, split.axis, layer_, required});
  }
  void fp8(const std::string& name, int64_t out, int64_t in, Split split = kFullCopy) {
    plain(name + ".weight", Dtype::kF8E4m3, {out, in}, split);
    plain(name + ".scale", Dtype::kF8E8m0, {out / kBlock, in / kBlock}, split);
  }
  void fp4(const std::string& name, int64_t out, int64_t in, Split split) {
    plain(name + ".weight", Dtype::kI8, {out, in / 2}, split);
    plain(name + ".scale", Dtype::kF8E8m0, {out, in / kBlock}, split);
  }

  // What every block has; `drafter` picks the components.
  void block(const std::string& prefix, bool drafter);
  void sources(const std::string& prefix, const LayerRole& role);
  void engram(const std::string& prefix, int64_t table);
  void drafter_heads();
  void vision();

 private:
  void attention(const std::string& prefix);
  void streams(const std::string& prefix);
  void experts(const std::string& prefix, bool drafter);

  const ModelConfig& c_;
  Component component_ = Component::kEmbedding;
  int32_t layer_ = -1;
  std::vector<TensorEntry> entries_;
};

void Catalogue::attention(const std::string& prefix) {
  const int64_t hidden = c_.hidden_size;
  plain(prefix + "attn_norm.weight", Dtype::kBf16, {hidden});
  fp8(prefix + "attn.wq_a", c_.q_lora_rank, hidden);
  plain(prefix + "attn.q_norm.weight", Dtype::kBf16, {c_.q_lora_rank});
  fp8(prefix + "attn.wq_b", c_.query_width(), c_.q_lora_rank, kGroupRows);
  fp8(prefix + "attn.wkv", c_.head_dim, hidden);
  plain(prefix + "attn.kv_norm.weight", Dtype::kBf16, {c_.head_dim});
  plain(prefix + "attn.attn_sink", Dtype::kF32, {c_.num_attention_heads}, kGroupRows);
  fp8(prefix + "attn.wo_a", c_.o_width(), c_.o_group_input(), kGroupRows);
  fp8(prefix + "attn.wo_b", hidden, c_.o_width(), kGroupColumns);
}

void Catalogue::streams(const std::string& prefix) {
  for (const char* part : {"hc_attn", "hc_ffn"}) {
    plain(prefix + part + "_fn", Dtype::kF32, {c_.hc_mixes(), c_.stream_width()});
    plain(prefix + part + "_base", Dtype::kF32, {c_.hc_mixes()});
    plain(prefix + part + "_scale", Dtype::kF32, {3});
  }
}

void Catalogue::experts(const std::string& prefix, bool drafter) {
  const int64_t hidden = c_.hidden_size;
  const int64_t width = c_.moe_intermediate_size;
  const int64_t count = drafter ? c_.dspark_n_routed_experts : c_.n_routed_experts;
  in(drafter ? Component::kDrafterRouter : Component::kRouter);
  plain(prefix + "ffn_norm.weight", Dtype::kBf16, {hidden});
  plain(prefix + "ffn.gate.weight", Dtype::kBf16, {count, hidden});
  plain(prefix + "ffn.gate.bias", Dtype::kF32, {count});
  plain(prefix + "ffn.gate.bias_vl", Dtype::kF32, {count}, kFullCopy, c_.vision.has_value());
  in(drafter ? Component::kDrafterSharedExpert : Component::kSharedExpert);
  fp8(prefix + "ffn.shared_experts.w1", width, hidden, kExpertRows);
  fp8(prefix + "ffn.shared_experts.w2", hidden, width, kExpertColumns);
  fp8(prefix + "ffn.shared_experts.w3", width, hidden, kExpertRows);
  in(drafter ? Component::kDrafterRoutedExperts : Component::kRoutedExperts);
  for (int64_t expert = 0; expert < count; ++expert) {
    const std::string name = prefix + "ffn.experts." + std::to_string(expert);
    fp4(name + ".w1", width, hidden, kExpertRows);
    fp4(name + ".w2", hidden, width, kExpertColumns);
    fp4(name + ".w3", width, hidden, kExpertRows);
  }
}

void Catalogue::block(const std::string& prefix, bool drafter) {
  in(drafter ? Component::kDrafterAttention : Component::kAttention).attention(prefix);
  in(drafter ? Component::kDrafterStreams : Component::kStreams).streams(prefix);
  experts(prefix, drafter);
}

void Catalogue::sources(const std::string& prefix, const LayerRole& role) {
  const int64_t hidden = c_.hidden_size;
  if (role.owns_kv()) {
    in(Component::kCompressor);
    plain(prefix + "attn.compressor.wkv.weight", Dtype::kBf16, {c_.head_dim, hidden});
    if (role.compress_ratio == 2) {
      plain(prefix + "attn.compressor.wgate.weight", Dtype::kBf16, {c_.head_dim, hidden});
    }
    plain(prefix + "attn.compressor.norm.weight", Dtype::kBf16, {c_.head_dim});
  }
  in(Component::kIndexer);
  if (role.owns_kv()) {
    plain(prefix + "attn.indexer.wk.weight", Dtype::kBf16, {c_.index_head_dim, c_.head_dim});
    plain(prefix + "attn.indexer.k_norm.weight", Dtype::kBf16, {c_.index_head_dim});
  }
  if (role.runs_indexer()) {
    fp8(prefix + "attn.indexer.wq_b", c_.index_width(), c_.q_lora_rank);
    plain(prefix + "attn.indexer.weights_proj.weight", Dtype::kBf16, {c_.index_n_heads, hidden});
  }
}

void Catalogue::engram(const std::string& prefix, int64_t table) {
  const int64_t rows = c_.engram_num_embeddings[static_cast<size_t>(table)];
  in(Component::kEngramTable);
  plain(prefix + "engram.embed.weight", Dtype::kF8E4m3, {rows, c_.engram_head_dim});
  plain(prefix + "engram.embed.scale", Dtype::kF8E8m0, {rows, c_.engram_head_dim / kBlock});
  in(Component::kEngramProjection);
  fp8(prefix + "engram.wkv", c_.engram_output(), c_.engram_width(), {SplitOver::kEngramOutput, 0});
  plain(prefix + "engram.q_weight", Dtype::kBf16, {c_.hc_mult, c_.hidden_size});
  plain(prefix + "engram.k_weight", Dtype::kBf16, {c_.hc_mult, c_.hidden_size});
}

void Catalogue::drafter_heads() {
  if (c_.num_nextn_predict_layers == 0) return;
  const int64_t hidden = c_.hidden_size;
  const int64_t rank = c_.dspark_markov_rank;
  const std::string last = "mtp." + std::to_string(c_.num_nextn_predict_layers - 1) + ".";
  in(Component::kDrafterHeads);
  fp8("mtp.0.main_proj", hidden, c_.main_proj_input(), {SplitOver::kMainOutput, 0});
  plain("mtp.0.main_norm.weight", Dtype::kBf16, {hidden});
  plain(last + "norm.weight", Dtype::kBf16, {hidden});
  plain(last + "markov_head.embed.weight", Dtype::kBf16, {c_.vocab_size, rank});
  // Whole on every rank, though it could be cut like the head: each draft's logits depend on the draft
  // before, so a cut one would cost an exchange per draft; this one costs 66 MB.
  plain(last + "markov_head.head.weight", Dtype::kBf16, {c_.vocab_size, rank});
  plain(last + "confidence_head.proj.weight", Dtype::kBf16, {1, hidden + rank});
}

void Catalogue::vision() {
  const int64_t hidden = c_.hidden_size;
  in(Component::kVision);
  for (const char* name : {"image_start", "image_end", "image_newline"}) {
    plain(name, Dtype::kBf16, {hidden}, kFullCopy, c_.vision.has_value());
  }
  if (!c_.vision) return;
  const VisionConfig& v = *c_.vision;
  const int64_t width = v.hidden_size;
  const auto linear = [&](const std::string& name, int64_t out, int64_t in_width, bool bias) {
    plain(name + ".weight", Dtype::kBf16, {out, in_width});
    if (bias) plain(name + ".bias", Dtype::kBf16, {out});
  };
  linear("aligner.w1", hidden, v.aligner_width(), true);
  linear("aligner.w2", hidden, hidden, true);
  linear("vision.patch_embed.proj", width, v.patch_width(), true);
  plain("vision.norm.weight", Dtype::kBf16, {width});
  for (int64_t b = 0; b < v.num_hidden_layers; ++b) {
    const std::string prefix = "vision.blocks." + std::to_string(b) + ".";
    plain(prefix + "norm1.weight", Dtype::kBf16, {width});
    plain(prefix + "norm2.weight", Dtype::kBf16, {width});
    linear(prefix + "attn.wqkv", 3 * width, width, true);
    linear(prefix + "attn.wo", width, width, true);
    linear(prefix + "mlp.w1", 2 * v.intermediate_size, width, false);
    linear(prefix + "mlp.w2", width, v.intermediate_size, false);
  }
}

constexpr std::array<std::string_view, kComponents> kComponentNames = {"embedding",
                                                                       "output head",
                                                                       "final norm",
                                                                       "attention",
                                                                       "compressors",
                                                                       "indexers",
                                                                       "streams (mHC)",
                                                                       "router",
                                                                       "shared experts",
                                                                       "routed experts",
                                                                       "Engram projections",
                                                                       "Engram tables",
                                                                       "drafter attention",
                                                                       "drafter streams",
                                                                       "drafter router",
                                                                       "drafter shared",
                                                                       "drafter routed",
                                                                       "drafter heads",
                                                                       "vision"};

}  // namespace

std::string_view name_of(Component component) {
  return kComponentNames[static_cast<size_t>(component)];
}

int64_t TensorEntry::elements() const {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

int64_t TensorEntry::parameters() const {
  if (dtype == Dtype::kF8E8m0) return 0;
  return dtype == Dtype::kI8 ? 2 * elements() : elements();
}

std::vector<TensorEntry> tensor_catalogue(const ModelConfig& config) {
  Catalogue catalogue(config);
  const LayerPlan plan = make_layer_plan(config);
  catalogue.in(Component::kEmbedding)
      .plain("embed.weight", Dtype::kBf16, {config.vocab_size, config.hidden_size}, kVocabularyRows);
  for (const LayerRole& role : plan.layers) {
    const std::string prefix = "layers." + std::to_string(role.layer) + ".";
    catalogue.at_layer(role.layer);
    catalogue.block(prefix, false);
    catalogue.sources(prefix, role);
    if (role.engram >= 0) catalogue.engram(prefix, role.engram);
  }
  catalogue.at_layer(-1);
  catalogue.in(Component::kFinalNorm).plain("norm.weight", Dtype::kBf16, {config.hidden_size});
  catalogue.in(Component::kHead)
      .plain("head.weight", Dtype::kBf16, {config.vocab_size, config.hidden_size}, kVocabularyRows);
  for (const LayerRole& role : plan.drafter) {
    catalogue.at_layer(role.layer);
    catalogue.block("mtp." + std::to_string(role.layer) + ".", true);
  }
  catalogue.at_layer(-1);
  catalogue.drafter_heads();
  catalogue.vision();
  return catalogue.take();
}

std::vector<ComponentTotal> component_totals(const std::vector<TensorEntry>& tensors) {
  std::array<ComponentTotal, kComponents> totals{};
  for (const TensorEntry& tensor : tensors) {
    ComponentTotal& total = totals[static_cast<size_t>(tensor.component)];
    total.tensors += 1;
    total.bytes += tensor.bytes();
    total.parameters += tensor.parameters();
  }
  std::vector<ComponentTotal> result;
  for (size_t i = 0; i < totals.size(); ++i) {
    totals[i].component = static_cast<Component>(i);
    if (totals[i].tensors > 0) result.push_back(totals[i]);
  }
  return result;
}

}  // namespace spark::model
