// SPDX-License-Identifier: Apache-2.0
/// What finding units by touch costs an operator (see NOTE [Units are found by touch]): one that
/// takes no weight, before and after a model was sharded, and one that takes a weight, of a plain
/// module and of a sharded one whose units are whole. Prints nanoseconds as one JSON line.
#include <torch/torch.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "fsdp/fsdp.hpp"
#include "training/protocol.hpp"

namespace {

constexpr int kRepetitions = 41, kCalls = 20'000;

/// The median over repetitions of a call's time.
template <class Operation>
double call_ns(Operation&& operation) {
  std::vector<double> all = bench::times_ms(kRepetitions, [&] {
    for (int i = 0; i < kCalls; ++i) {
      operation();
    }
  });
  std::ranges::nth_element(all, all.begin() + kRepetitions / 2);
  return all[kRepetitions / 2] * 1e6 / kCalls;
}

int run() {
  torch::set_num_threads(1);
  torch::NoGradGuard no_grad;
  const at::Tensor free = torch::ones({8, 8}), x = torch::ones({8, 8}), out = torch::empty({8, 8});
  at::Tensor result = out;
  const auto product = [&](const at::Tensor& left) {
    return call_ns([&] { at::mul_out(result, left, x); });
  };
  torch::nn::Linear plain(8, 8), sharded_layer(8, 8);
  nlohmann::json line{{"phase", "done"}};
  line["untouched_before_ns"] = product(free);
  line["plain_weight_ns"] = product(plain->weight);
  const fsdp::Sharded sharded =
      fsdp::fully_shard(sharded_layer, fsdp::init(), {.debug = {.print_promise = false}});
  line["untouched_after_ns"] = product(free);
  const fsdp::FullParameters whole = sharded.full_parameters();
  line["touched_ns"] = product(sharded_layer->weight);
  bench::end_phase(line.dump());
  return 0;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_tracker: %s\n", error.what());
    return 1;
  }
}
