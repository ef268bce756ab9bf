// SPDX-License-Identifier: Apache-2.0
/// What was done to tensors that have no memory yet, and how to do it for one of them.
///
/// NOTE [Deferred initialisation]
/// A deferred tensor is an ordinary CPU (or GPU) tensor over a storage without memory, tagged with
/// kTouchKey so that the touch fallback sees every operator that takes it. Views need no memory:
/// they run as they are. Of the others the tape keeps, by storage, the *steps* that fill it: the
/// operator, its arguments, and, for arguments that are deferred themselves, which storage and how
/// it was viewed. The shapes of new tensors come from running the operator on the meta device.
///
/// To fill a storage its steps are run in order, from the last one that overwrites all of it. An
/// operand of a step is what its storage was at that step, so it is filled anew, up to there, and
/// thrown away. Nothing is kept between two requests: the peak is the tensor and its operands.
///
/// A random operator has to run with the state that its generator would have had, had all before it
/// run. The generator itself is left at a marked state, so that a seed in between is noticed, also
/// one that was used before. States are found in order: to know the next one, an operator that is
/// not wanted itself runs on scratch memory, once. Parameters that are asked for in the order in
/// which they were made draw every number once.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace fsdp::engine {

/// Zeros that take memory as they are written, for tensors that code may fill by hand.
class LazyBlock {
 public:
  explicit LazyBlock(std::size_t bytes);
  ~LazyBlock();
  LazyBlock(const LazyBlock&) = delete;
  LazyBlock& operator=(const LazyBlock&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

/// A tensor as a way to look at storage `storage` of a tape.
struct DeferredView {
  std::size_t storage = 0;
  std::vector<std::int64_t> sizes, strides;
  std::int64_t offset = 0;
  at::ScalarType dtype = at::kFloat;

  at::Tensor of(const c10::Storage& memory) const;
};

/// Where a tensor stands among an operator's arguments or results: itself (element -1) or in a
/// list.
struct ArgumentPosition {
  std::size_t index = 0;
  std::ptrdiff_t element = -1;
};

struct DeferredStep {
  c10::OperatorHandle op;
  torch::jit::Stack arguments = {};  ///< deferred tensors are undefined here
  struct Operand {
    ArgumentPosition place;
    DeferredView view;
    bool is_written;
  };
  std::vector<Operand> operands = {};
  struct Held {
    at::Tensor tensor;
    std::int64_t version;
  };
  std::vector<Held> held =
      {};  ///< tensors with memory among the arguments: they must stay as they are
  struct Product {
    ArgumentPosition place;
    std::size_t storage;
  };
  std::vector<Product> products = {};
  struct Draw {
    std::size_t stream, index;
  };
  std::optional<Draw> draw = {};  ///< of a random operator
};

/// *Thread safety*: all members lock.
class DeferredTape {
 public:
  /// A storage of `bytes`; with `block`, whose content until the first step is what lies there.
  std::size_t add_storage(std::int64_t bytes, c10::Device device, std::shared_ptr<LazyBlock> block);
  /// `step` is complete but for its generator's part.
  void add_step(DeferredStep step);
  /// Runs a step at once and returns its results.
  torch::jit::Stack run_now(DeferredStep step);
  /// What `storage` holds after all its steps, in memory of its own.
  c10::Storage fill(std::size_t storage);

 private:
  struct Record {
    std::int64_t bytes;
    c10::Device device;
    std::shared_ptr<LazyBlock> block;
    std::vector<std::size_t> steps;
  };
  /// The draws of one generator from one state on.
  struct Stream {
    at::Generator generator;
    std::vector<std::size_t> steps;
    std::vector<at::Tensor> states;  ///< before each draw, as far as known; the first always
    at::Tensor marker;               ///< what the generator is left at while nobody seeds it
  };
  using Memories = std::map<std::size_t, c10::Storage>;

  void note_draw(DeferredStep& step);
  c10::Storage fill(std::size_t storage, std::size_t end);
  torch::jit::Stack run(std::size_t step, const Memories& own);
  /// A generator and the state that an operator finds it in, then the one that it leaves.
  struct Random {
    at::Generator generator;
    at::Tensor state;
  };
  /// `random`: none for an operator that does not draw.
  torch::jit::Stack call(const DeferredStep& step, std::size_t index, const Memories& own,
                         Random* random);
  const at::Tensor& state_before(std::size_t stream, std::size_t draw);
  bool overwrites(const DeferredStep& step, std::size_t storage) const;
  static bool produces(const DeferredStep& step, std::size_t storage);

  std::recursive_mutex mutex_;
  std::vector<Record> records_;
  std::vector<DeferredStep> steps_;
  std::vector<Stream> streams_;
};

/// Whether values of its results depend on a generator.
bool is_random(const c10::OperatorHandle& op);

}  // namespace fsdp::engine
