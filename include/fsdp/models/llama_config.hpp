// SPDX-License-Identifier: Apache-2.0
/// The shape of a Llama model and of its relatives Mistral, Qwen2 and Qwen3, which compute the same
/// except for what the fields here say. Without LibTorch.
#pragma once

#include <cstdint>
#include <vector>

#include "fsdp/models/special_tokens.hpp"

namespace fsdp::models {

/// How rotary frequencies are stretched over contexts longer than those of the first training.
enum class RopeScaling {
  kDefault,  ///< not at all
  kLinear,   ///< all divided by `factor`
  kLlama3,   ///< low ones divided by `factor`, high ones kept, those between interpolated
};

/// "default", "linear", "llama3": Hugging Face's rope_type.
const char* to_string(RopeScaling scaling);

/// Rotary position embeddings. Su et al., "RoFormer" (2021); llama3: Meta, "The Llama 3 Herd of
/// Models" (2024).
struct RopeConfig {
  double theta = 10000;  ///< base of the frequencies
  RopeScaling scaling = RopeScaling::kDefault;
  double factor = 1;
  double low_freq_factor = 1;            ///< kLlama3: original_context / it is a low wave length
  double high_freq_factor = 4;           ///< kLlama3: original_context / it is a high one
  std::int64_t original_context = 8192;  ///< kLlama3: context of the first training
};

/// The sizes of a Llama model or of a relative. Touvron et al., "Llama 2" (2023).
struct LlamaConfig {
  std::int64_t vocab = 256;     ///< number of tokens; 256 for bytes
  std::int64_t width = 128;     ///< features per position
  std::int64_t inner = 344;     ///< features inside the MLP
  std::int64_t layers = 4;      ///< transformer blocks
  std::int64_t heads = 4;       ///< query heads
  std::int64_t kv_heads = 2;    ///< key and value heads, each shared by heads / kv_heads queries
  std::int64_t head_width = 0;  ///< features of a head, an even number; 0 for width / heads
  std::int64_t context = 128;   ///< longest sequence
  double norm_eps = 1e-5;       ///< added to the mean square of an RMSNorm
  RopeConfig rope = {};
  bool attention_bias = false;  ///< q_proj, k_proj, v_proj and o_proj have biases
  bool input_bias = false;      ///< q_proj, k_proj and v_proj have biases, o_proj has none
  bool head_norms = false;      ///< each query and key head has an RMSNorm before it is rotated
  bool mlp_bias = false;        ///< gate_proj, up_proj and down_proj have biases
  bool tied = false;            ///< the head uses the token embedding's weight
  double dropout = 0.0;         ///< of attention weights, while training
  SpecialTokens special = {};

  /// Positions that attention looks at, its own among them; 0 for all before it. Beltagy et al.,
  /// "Longformer" (2020).
  std::int64_t window = 0;
  std::int64_t first_windowed = 0;  ///< with a window: the first block that has it

  std::int64_t effective_head_width() const { return head_width > 0 ? head_width : width / heads; }
  /// The window of a block; 0 for none.
  std::int64_t window_of(std::int64_t block) const { return block < first_windowed ? 0 : window; }
};

/// Jiang et al., "Mistral 7B" (2023): every block may have a window.
struct MistralConfig : LlamaConfig {};
/// Yang et al., "Qwen2 Technical Report" (2024): input_bias, and blocks from one on may have a
/// window.
struct Qwen2Config : LlamaConfig {};
/// Yang et al., "Qwen3 Technical Report" (2025): head_norms, else as Qwen2.
struct Qwen3Config : LlamaConfig {};

/// Checks that a model can be built. @throws Error kInvalidArgument naming every size that is wrong
void validate(const LlamaConfig& config);

/// Parameters of the model; a tied weight counts once.
std::int64_t parameter_count(const LlamaConfig& config);

/// Radians per position of each pair of features, head_width / 2 of them, scaled. Computed in
/// float, as the published models were.
std::vector<float> rope_frequencies(const LlamaConfig& config);

}  // namespace fsdp::models
