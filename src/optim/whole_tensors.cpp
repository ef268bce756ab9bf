// SPDX-License-Identifier: Apache-2.0
#include "fsdp/optim/whole_tensors.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "base/near_names.hpp"
#include "comm/tensor_at.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/comm/transport.hpp"
#include "fsdp/engine/shard_access.hpp"

namespace fsdp::optim {
namespace {

std::size_t at_rank(int rank) { return static_cast<std::size_t>(rank); }

at::ScalarType widest(const std::vector<NamedShard>& shards) {
  const bool has_double = std::any_of(shards.begin(), shards.end(), [](const NamedShard& shard) {
    return shard.shard.scalar_type() == at::kDouble;
  });
  return has_double ? at::kDouble : at::kFloat;
}

}  // namespace

WholeTensors::WholeTensors(Sharded sharded, std::vector<std::string> names,
                           WholeTensorsOptions options)
    : sharded_(std::move(sharded)),
      dtype_(options.dtype),
      memory_(sharded_.shard_access(), memory::Kind::kStaging) {
  std::map<std::string, NamedShard> by_name;
  for (NamedShard& shard : sharded_.named_parameters()) {
    by_name.emplace(shard.name, std::move(shard));
  }
  std::vector<NamedShard> shards;
  for (const std::string& name : names) {
    const auto found = by_name.find(name);
    if (found == by_name.end()) {
      std::vector<std::string> known;
      for (const auto& [of, shard] : by_name) {
        known.push_back(of);
      }
      fail(ErrorCode::kNotFound, "[WholeTensors] no parameter is called \"", name,
           "\", nearest are ", base::near_names_text(name, known));
    }
    shards.push_back(found->second);
  }
  if (dtype_ == at::ScalarType::Undefined) {
    dtype_ = widest(shards);
  }
  const OwnShards own;
  learn_parts(shards);
  make_batches(options);
  choose_owners(options);
  std::int64_t slice_numel = 0;
  for (const auto& batch : batches_) {
    slice_numel = std::max({slice_numel, places(batch, &Tensor::answered).slice_numel,
                            places(batch, &Tensor::held).slice_numel});
  }
  comm::Transport& transport = sharded_.world().transport();
  const auto itemsize = static_cast<std::int64_t>(c10::elementSize(dtype_));
  const std::int64_t bytes = slice_numel * transport.size() * itemsize;
  const c10::Device device =
      shards.empty() ? c10::Device(c10::kCPU) : shards.front().shard.device();
  bytes_ = device.is_cpu() ? transport.buffer(bytes)
                           : at::empty({bytes}, at::TensorOptions(at::kByte).device(device));
  slice_ = at::empty({slice_numel}, at::TensorOptions(dtype_).device(device));
  results_ = at::empty({most_owned_numel()}, slice_.options());
  memory_.add(bytes + (slice_numel + results_.numel()) * itemsize +
              transport.reserve_staging(bytes, 1));
}

/// Each rank says which elements it holds, and for which of them it answers.
void WholeTensors::learn_parts(const std::vector<NamedShard>& shards) {
  const World world = sharded_.world();
  const auto count = static_cast<std::int64_t>(shards.size());
  struct Parts {
    Part held, answered;
  };
  std::vector<Parts> own;
  own.reserve(shards.size());
  for (const NamedShard& shard : shards) {
    own.push_back(
        {.held = {.begin = shard.begin, .numel = shard.shard.numel()},
         .answered = {.begin = shard.begin + shard.answered_begin, .numel = shard.answered_numel}});
  }
  const auto all = comm::gather_values(world.job(), own, "WholeTensors: parts");
  for (std::int64_t i = 0; i < count; ++i) {
    const NamedShard& shard = shards[static_cast<std::size_t>(i)];
    Tensor tensor{.sizes = shard.sizes,
                  .strides = shard.parameter.strides().vec(),
                  .held = {},
                  .answered = {}};
    tensor.numel = std::accumulate(shard.sizes.begin(), shard.sizes.end(), std::int64_t{1},
                                   std::multiplies<>());
    std::int64_t covered = 0;
    for (int rank = 0; rank < world.size(); ++rank) {
      const Parts& theirs = all[static_cast<std::size_t>(count * rank + i)];
      tensor.held.push_back(theirs.held);
      tensor.answered.push_back(theirs.answered);
      covered += theirs.answered.numel;
    }
    FSDP_ASSERT(covered == tensor.numel, "the parts of \"", shard.name, "\" have ", covered, " of ",
                tensor.numel, " elements");
    tensors_.push_back(std::move(tensor));
  }
}

/// In the order of the indices, as many as fit.
void WholeTensors::make_batches(const WholeTensorsOptions& options) {
  const auto itemsize = static_cast<std::int64_t>(c10::elementSize(dtype_));
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const std::int64_t more = tensors_[i].numel * itemsize;
    if (batches_.empty() || bytes + more > options.batch_bytes) {
      batches_.emplace_back();
      bytes = 0;
    }
    batches_.back().push_back(i);
    bytes += more;
  }
}

/// Costly ones first, each to the rank with the least so far: at most 4/3 of the best there is
/// (Graham, "Bounds on Multiprocessing Timing Anomalies", 1969). By batch, since ranks meet after
/// each.
void WholeTensors::choose_owners(const WholeTensorsOptions& options) {
  const auto cost = [&](std::size_t i) {
    return options.cost ? options.cost(tensors_[i].sizes) : static_cast<double>(tensors_[i].numel);
  };
  std::vector<double> total(at_rank(sharded_.world().size()), 0);
  for (std::vector<std::size_t> batch : batches_) {
    std::stable_sort(batch.begin(), batch.end(),
                     [&](std::size_t left, std::size_t right) { return cost(left) > cost(right); });
    std::vector<double> load(total.size(), 0);
    for (const std::size_t i : batch) {
      // Among the ranks with the least in this batch, the one with the least in all.
      std::size_t best = 0;
      for (std::size_t rank = 1; rank < load.size(); ++rank) {
        if (std::pair(load[rank], total[rank]) < std::pair(load[best], total[best])) {
          best = rank;
        }
      }
      tensors_[i].owner = static_cast<int>(best);
      load[best] += cost(i);
      total[best] += cost(i);
    }
  }
}

/// Elements of the batch of which this rank owns most.
std::int64_t WholeTensors::most_owned_numel() const {
  std::int64_t most = 0;
  for (const std::vector<std::size_t>& batch : batches_) {
    std::int64_t numel = 0;
    for (const std::size_t i : batch) {
      numel += tensors_[i].owner == sharded_.world().rank() ? tensors_[i].numel : 0;
    }
    most = std::max(most, numel);
  }
  return most;
}

WholeTensors::SliceOffsets WholeTensors::places(const std::vector<std::size_t>& batch,
                                                Parts parts) const {
  SliceOffsets places;
  for (int rank = 0; rank < sharded_.world().size(); ++rank) {
    std::int64_t offset = 0;
    std::vector<std::int64_t>& offsets = places.offsets.emplace_back();
    for (const std::size_t i : batch) {
      offsets.push_back(offset);
      offset += (tensors_[i].*parts)[at_rank(rank)].numel;
    }
    places.slice_numel = std::max(places.slice_numel, offset);
    places.logical_numel += offset;
  }
  return places;
}

at::Tensor WholeTensors::buffer(std::int64_t numel) const {
  return comm::tensor_at(bytes_.data_ptr(), numel, dtype_, bytes_.device());
}

void WholeTensors::gather(const std::vector<std::size_t>& batch, const SliceOffsets& places,
                          const Put& put) {
  const World world = sharded_.world();
  const at::Tensor whole = buffer(places.slice_numel * world.size());
  const at::Tensor own = whole.narrow(0, world.rank() * places.slice_numel, places.slice_numel);
  for (std::size_t position = 0; position < batch.size(); ++position) {
    const Tensor& tensor = tensors_[batch[position]];
    const Part& part = tensor.answered[at_rank(world.rank())];
    const std::int64_t offset = places.offsets[at_rank(world.rank())][position];
    put(batch[position], part.begin - tensor.held[at_rank(world.rank())].begin,
        own.narrow(0, offset, part.numel));
  }
  world.transport().all_gather(whole, own, {.name = "WholeTensors: gather"})->wait();
  const auto itemsize = static_cast<std::int64_t>(c10::elementSize(dtype_));
  ++traffic_.gathers;
  traffic_.gather_bytes += places.logical_numel * itemsize;
  traffic_.padding_bytes += (whole.numel() - places.logical_numel) * itemsize;
}

void WholeTensors::assemble(const at::Tensor& flat, std::size_t i, std::size_t position,
                            const SliceOffsets& places) const {
  const Tensor& tensor = tensors_[i];
  const at::Tensor slices = buffer(places.slice_numel * sharded_.world().size());
  for (int rank = 0; rank < sharded_.world().size(); ++rank) {
    const Part& part = tensor.answered[at_rank(rank)];
    const std::int64_t offset = rank * places.slice_numel + places.offsets[at_rank(rank)][position];
    flat.narrow(0, part.begin, part.numel).copy_(slices.narrow(0, offset, part.numel));
  }
}

void WholeTensors::transform(const std::vector<std::size_t>& which, const Put& put,
                             const std::function<void(std::size_t, at::Tensor)>& compute,
                             const std::function<void(std::size_t, at::Tensor)>& take) {
  const OwnShards own;
  const World world = sharded_.world();
  const auto itemsize = static_cast<std::int64_t>(c10::elementSize(dtype_));
  const std::set<std::size_t> wanted(which.begin(), which.end());
  for (const std::vector<std::size_t>& all_of_batch : batches_) {
    std::vector<std::size_t> batch;
    std::copy_if(all_of_batch.begin(), all_of_batch.end(), std::back_inserter(batch),
                 [&](std::size_t i) { return wanted.contains(i); });
    if (batch.empty()) {
      continue;
    }
    const SliceOffsets from = places(batch, &Tensor::answered), to = places(batch, &Tensor::held);
    gather(batch, from, put);
    std::vector<at::Tensor> results(batch.size());
    std::int64_t owned_numel = 0;
    for (std::size_t position = 0; position < batch.size(); ++position) {
      const Tensor& tensor = tensors_[batch[position]];
      if (tensor.owner == world.rank()) {
        results[position] = results_.narrow(0, owned_numel, tensor.numel);
        owned_numel += tensor.numel;
        assemble(results[position], batch[position], position, from);
        compute(batch[position], results[position].as_strided(tensor.sizes, tensor.strides,
                                                              results[position].storage_offset()));
      }
    }
    // Each element comes from its owner; what the others add is zero.
    const at::Tensor slices = buffer(to.slice_numel * world.size());
    slices.zero_();
    for (std::size_t position = 0; position < batch.size(); ++position) {
      for (int rank = 0; results[position].defined() && rank < world.size(); ++rank) {
        const Part& part = tensors_[batch[position]].held[at_rank(rank)];
        const std::int64_t offset = rank * to.slice_numel + to.offsets[at_rank(rank)][position];
        slices.narrow(0, offset, part.numel)
            .copy_(results[position].narrow(0, part.begin, part.numel));
      }
    }
    const at::Tensor slice = slice_.narrow(0, 0, to.slice_numel);
    world.transport().reduce_scatter(slice, slices, {}, {.name = "WholeTensors: results"})->wait();
    ++traffic_.reduce_scatters;
    traffic_.reduce_bytes += to.logical_numel * itemsize;
    traffic_.padding_bytes += (slices.numel() - to.logical_numel) * itemsize;
    for (std::size_t position = 0; position < batch.size(); ++position) {
      const std::int64_t numel = tensors_[batch[position]].held[at_rank(world.rank())].numel;
      const std::int64_t offset = to.offsets[at_rank(world.rank())][position];
      take(batch[position], slice.narrow(0, offset, numel));
    }
  }
}

}  // namespace fsdp::optim
