// SPDX-License-Identifier: Apache-2.0
/// For optimizers that must look at a parameter as a whole (Muon's orthogonalisation, a row's
/// norm): hands whole tensors made of all ranks' parts to one rank each, which computes, and brings
/// the results back as parts.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "fsdp/engine/fully_shard.hpp"
#include "fsdp/engine/shard_access.hpp"

namespace fsdp::optim {

/// How whole tensors are spread over their owners.
struct WholeTensorsOptions {
  /// What a whole tensor costs its owner, from its shape, in any unit; owners are chosen so that
  /// the costs of the ranks are alike. Default: its number of elements.
  std::function<double(const std::vector<std::int64_t>& sizes)> cost = {};
  /// The type in which parts travel and owners compute. Undefined: double if any of the parameters
  /// is, else float.
  at::ScalarType dtype = at::ScalarType::Undefined;
  /// Tensors are gathered together as long as they fit into this many bytes; a larger one alone.
  std::int64_t batch_bytes = std::int64_t{64} << 20;
};

/// What a transform() moved, for reports and tests. Logical bytes leave padding out.
struct WholeTensorsTraffic {
  std::int64_t gathers = 0;
  std::int64_t gather_bytes = 0;
  std::int64_t reduce_scatters = 0;
  std::int64_t reduce_bytes = 0;
  std::int64_t padding_bytes = 0;
};

/// *Invariants*: each tensor has one owner, equal on all ranks. *Thread safety*: one thread at a
/// time. *Example*:
///
///     WholeTensors whole(sharded, {"*.weight"});
///     whole.transform([&](std::size_t i, std::int64_t begin, at::Tensor dst) {
///                       dst.copy_(parts[i].narrow(0, begin, dst.numel()));
///                     },
///                     [&](std::size_t i, at::Tensor w) { w.div_(w.norm(2, 1, true)); },
///                     [&](std::size_t i, at::Tensor src) { parts[i].copy_(src); });
class WholeTensors {
 public:
  /// For the parameters of these names, not patterns; index i below means names[i].
  /// @collective all ranks, same names @memory W + 1 slices of a batch and the tensors of a batch
  /// that this rank owns, in the ledger and the promise as staging
  /// @throws Error kNotFound for a name that is not there
  WholeTensors(Sharded sharded, std::vector<std::string> names, WholeTensorsOptions options = {});
  WholeTensors(const WholeTensors&) = delete;
  WholeTensors& operator=(const WholeTensors&) = delete;

  /// Writes elements [begin, begin + dst.numel()) of this rank's shard, or of what belongs to it.
  using Put = std::function<void(std::size_t i, std::int64_t begin, at::Tensor dst)>;

  /// For each of the tensors `which` (ascending indices, the same on all ranks): `put` writes this
  /// rank's part; on the owner `compute` changes the whole, of the parameter's shape and
  /// strides; `take` reads this rank's part of what came of it. An all-gather brings the parts of a
  /// batch together and a reduce-scatter the results back, with zeros from all but the owner: twice
  /// the bytes of a gather of the weights, (W - 1) / W of them received.
  /// @collective all ranks @blocks
  void transform(const std::vector<std::size_t>& which, const Put& put,
                 const std::function<void(std::size_t, at::Tensor whole)>& compute,
                 const std::function<void(std::size_t, at::Tensor src)>& take);

  /// The rank that owns tensor `i`.
  int owner(std::size_t i) const { return tensors_[i].owner; }
  at::ScalarType dtype() const { return dtype_; }
  /// Of all calls so far.
  const WholeTensorsTraffic& traffic() const { return traffic_; }

 private:
  /// What a rank holds of a tensor.
  struct Part {
    std::int64_t begin = 0, numel = 0;
  };
  struct Tensor {
    std::vector<std::int64_t> sizes, strides;
    std::int64_t numel = 0;
    std::vector<Part> held, answered;  ///< by rank; see NamedShard
    int owner = 0;
  };
  /// Where the parts of a batch lie in each rank's slice.
  struct SliceOffsets {
    std::vector<std::vector<std::int64_t>> offsets;  ///< by rank, then tensor of the batch
    std::int64_t slice_numel = 0, logical_numel = 0;
  };

  void learn_parts(const std::vector<NamedShard>& shards);
  void make_batches(const WholeTensorsOptions& options);
  void choose_owners(const WholeTensorsOptions& options);
  using Parts = std::vector<Part> Tensor::*;
  SliceOffsets places(const std::vector<std::size_t>& batch, Parts parts) const;
  at::Tensor buffer(std::int64_t numel) const;
  void gather(const std::vector<std::size_t>& batch, const SliceOffsets& places, const Put& put);
  void assemble(const at::Tensor& flat, std::size_t i, std::size_t position,
                const SliceOffsets& places) const;
  std::int64_t most_owned_numel() const;

  Sharded sharded_;
  at::ScalarType dtype_;
  std::vector<Tensor> tensors_;
  std::vector<std::vector<std::size_t>> batches_;
  at::Tensor bytes_, slice_, results_;  ///< W slices, one, and what this rank owns
  HeldMemory memory_;
  WholeTensorsTraffic traffic_;
};

}  // namespace fsdp::optim
