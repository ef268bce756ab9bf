// SPDX-License-Identifier: Apache-2.0
/// What all language models here have in common: tokens in, logits or a loss out, blocks that are
/// the usual units of sharding, and a cache of keys and values for drawing text. Trainer,
/// evaluation and generation see models through it.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "fsdp/models/model_config.hpp"

namespace fsdp::models {

/// Keys and values of the tokens that a model has seen, block by block, so that each further token
/// costs one position instead of all.
///
/// *Invariants*: all blocks hold length() positions between two forwards. *Thread safety*: none.
class KeyValueCache {
 public:
  struct Seen {
    at::Tensor keys, values;
  };

  /// @memory none yet; grows with the tokens seen, 2 x layers x kv heads x head width x itemsize
  /// bytes per position and sequence, doubling up to `capacity` positions
  explicit KeyValueCache(std::int64_t capacity) : capacity_(capacity) {}

  /// Positions that every block has.
  std::int64_t length() const { return length_; }
  std::int64_t capacity() const { return capacity_; }

  /// Appends a block's keys and values of new positions, [batch, kv heads, new, head width], and
  /// returns those of all positions. Views of the cache: valid until the next call.
  Seen extend(std::size_t block, const at::Tensor& keys, const at::Tensor& values);
  /// All blocks have appended `positions`.
  void advance(std::int64_t positions) { length_ += positions; }

 private:
  std::int64_t capacity_;
  std::int64_t length_ = 0;
  std::vector<Seen> blocks_;
};

/// Lengths of the documents that lie behind one another in each row of a batch; of a row they add
/// up to its time.
using Documents = std::vector<std::vector<std::int64_t>>;

/// Rows of several documents each, which do not see one another.
struct PackedBatch {
  /// A target that nothing is learnt from.
  static constexpr std::int64_t kNoTarget = -100;

  at::Tensor tokens;   ///< int64 [batch, time]
  at::Tensor targets;  ///< the same, with kNoTarget where nothing is learnt
  std::shared_ptr<const Documents> documents;
};

/// What a forward looks at beside its tokens: at most one of both.
struct Surroundings {
  KeyValueCache* cache = nullptr;
  std::shared_ptr<const Documents> documents{};
};

/// A block of a language model: the usual unit of sharding, as `units_of<models::DecoderBlock>()`.
class DecoderBlock : public torch::nn::Module {};

/// What runs a block: it returns what `block(x)` returns, and may call it more than once, as
/// activation checkpointing does.
using BlockRunner =
    std::function<at::Tensor(const std::function<at::Tensor(at::Tensor)>& block, at::Tensor x)>;

/// A causal language model.
///
/// *Invariants*: weights are drawn from LibTorch's default generator in a fixed order, so that
/// `torch::manual_seed` before construction decides them. *Thread safety*: as torch::nn::Module.
/// *Example*:
///
///     auto model = make_model(read_config("config.json", text));
///     model->forward(tokens, targets).backward();
class LanguageModel : public torch::nn::Module {
 public:
  /// Logits [batch, time, vocab] of int64 tokens [batch, time], in the weights' dtype.
  /// @throws Error kInvalidArgument for other dimensions or a time beyond the context
  at::Tensor forward(const at::Tensor& tokens);
  /// Mean cross-entropy in nats of `targets` [batch, time], a scalar.
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& targets);
  /// The same for documents that are packed into rows, as if each had a row of its own: the sum of
  /// the cross-entropy in nats over all targets that count.
  /// @throws Error kInvalidArgument for documents that do not add up to the rows
  at::Tensor forward(const PackedBatch& batch);
  /// Logits [batch, vocab] of the token that follows `tokens`, which themselves follow what the
  /// cache has seen, and are in it afterwards. For inference: evaluation mode and no gradients.
  /// @throws Error kInvalidArgument when the cache's length and the time exceed its capacity or the
  /// context
  at::Tensor forward(const at::Tensor& tokens, KeyValueCache& cache);

  /// Lets `run` run each block in every forward without a cache; empty: blocks run by themselves.
  void set_block_runner(BlockRunner run) { run_block_ = std::move(run); }

  virtual ModelConfig model_config() const = 0;
  ModelSizes model_sizes() const { return sizes(model_config()); }

 protected:
  /// The final norm's output [batch, time, width].
  virtual at::Tensor features(const at::Tensor& tokens, const Surroundings& around) = 0;
  /// Logits of features.
  virtual at::Tensor head(const at::Tensor& features) = 0;
  /// Positions of tokens [batch, time] in their documents: int64 [time], or [batch, time] of
  /// several documents.
  static at::Tensor positions(const at::Tensor& tokens, const Surroundings& around);
  /// Null when blocks run by themselves.
  const BlockRunner& block_runner() const { return run_block_; }

 private:
  void check_tokens(const at::Tensor& tokens, std::int64_t seen) const;

  BlockRunner run_block_;
};

/// Builds a model of that shape with new weights. @throws Error kInvalidArgument, see validate()
std::shared_ptr<LanguageModel> make_model(const ModelConfig& config);

}  // namespace fsdp::models
