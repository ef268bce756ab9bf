// SPDX-License-Identifier: Apache-2.0
/// Other tensors over a weight's memory: views made after sharding work over any number of frees;
/// aliases made before, and raw pointers to freed memory, are refused.
#include <sstream>

#include "parity/touch_support.hpp"

namespace fsdp::test {
namespace {

using View = std::function<at::Tensor(const at::Tensor&)>;

/// The view is taken in the first step and used in all of them; weights move in between.
void expect_kept_view_parity(const View& view) {
  expect_parity([&] {
    const at::Tensor x = random({3, 4});
    const TwoLayers module = two_layers();
    auto kept = std::make_shared<at::Tensor>();
    return case_of(module, [=](TwoLayersImpl& of, const Trial& trial) -> Tensors {
      at::Tensor output = of.forward(x);
      trial.free_weights();
      at::Tensor seen;
      {
        torch::NoGradGuard no_grad;
        if (!kept->defined()) {
          *kept = view(of.first->weight);
        }
        seen = kept->mul(2.0);
      }
      loss_of(output).backward();
      trial.free_weights();
      torch::NoGradGuard no_grad;
      return {output, seen, kept->sum()};
    });
  });
}

TEST(TouchAlias, ViewsMadeAfterShardingFollowTheWeights) {
  const std::vector<View> views = {
      [](const at::Tensor& w) { return w.t(); },
      [](const at::Tensor& w) { return w.detach(); },
      [](const at::Tensor& w) { return w.data(); },
      [](const at::Tensor& w) { return w.variable_data(); },
      [](const at::Tensor& w) { return w.slice(0, 1, 3); },
      [](const at::Tensor& w) { return w.as_strided({2, 2}, {4, 1}); },
      [](const at::Tensor& w) { return w.chunk(2)[1]; },
      [](const at::Tensor& w) { return w.unbind()[1]; },
      [](const at::Tensor& w) { return w.view({-1}).narrow(0, 2, 5); },
      [](const at::Tensor& w) { return w.flatten(); },
      [](const at::Tensor& w) { return w.permute({1, 0}).unsqueeze(0).expand({2, 4, 6}); },
      [](const at::Tensor& w) { return w.split(2)[0].select(1, 1); },
      [](const at::Tensor& w) { return w.diagonal(); },
      [](const at::Tensor& w) { return w.unfold(1, 2, 1); },
      [](const at::Tensor& w) { return w.index({torch::indexing::Slice(1, 4)}); },
  };
  for (std::size_t i = 0; i < views.size(); ++i) {
    SCOPED_TRACE("view " + std::to_string(i));
    expect_kept_view_parity(views[i]);
  }
}

TEST(TouchAlias, ViewsInsideTheGraph) {
  expect_parity([] {
    const at::Tensor x = random({3, 4});
    return case_of(two_layers(), [x](TwoLayersImpl& of, const Trial& trial) -> Tensors {
      at::Tensor top = of.first->weight.slice(0, 0, 3), bottom = of.first->weight.slice(0, 3, 6);
      at::Tensor transposed = of.second->weight.t();
      trial.free_weights();
      at::Tensor hidden = at::cat({at::matmul(x, top.t()), at::matmul(x, bottom.t())}, 1);
      trial.free_weights();
      at::Tensor output = at::matmul(hidden, transposed);
      trial.free_weights();
      loss_of(output).backward();
      return {output};
    });
  });
}

void expect_refused_before_sharding(const View& alias) {
  run_threads(1, [&](const World& world) {
    const TwoLayers module = two_layers();
    const at::Tensor kept = alias(module->first->weight);
    const std::string error = error_of([&] { shard_each(*module, world); });
    EXPECT_NE(error.find("first"), std::string::npos) << error;
    EXPECT_NE(error.find("made before sharding"), std::string::npos) << error;
    module->forward(random({1, 4}));  // left as it was
  });
}

TEST(TouchAlias, AliasesMadeBeforeShardingAreRefused) {
  expect_refused_before_sharding([](const at::Tensor& w) { return w.detach(); });
  expect_refused_before_sharding([](const at::Tensor& w) { return w.data(); });
  expect_refused_before_sharding([](const at::Tensor& w) { return w.detach().t(); });
  expect_refused_before_sharding([](const at::Tensor& w) { return w.slice(0, 0, 1); });
  expect_refused_before_sharding(
      [](const at::Tensor& w) { return at::empty({0}, at::kDouble).set_(w.storage()); });
}

TEST(TouchAlias, AnAliasOfTheStorageReadsNoFreedMemory) {
  run_threads(1, [](const World& world) {
    const TwoLayers module = two_layers();
    const Sharded sharded = shard_each(*module, world);
    torch::NoGradGuard no_grad;
    at::Tensor alias;
    const auto make_alias = [&] {
      alias = at::empty({0}, at::kDouble).set_(module->first->weight.storage(), 0, {6, 4}, {4, 1});
    };
    EXPECT_NE(error_of(make_alias).find("first_weight"), std::string::npos);
    {
      const auto whole = sharded.full_parameters();
      make_alias();
      EXPECT_TRUE(at::equal(alias, module->first->weight));
    }
    const std::string error = error_of([&] { alias.sum().item<double>(); });
    EXPECT_NE(error.find("first_weight"), std::string::npos) << error;
  });
}

TEST(TouchAlias, RawPointersToFreedWeightsThrowTheParametersName) {
  run_threads(1, [](const World& world) {
    const TwoLayers module = two_layers();
    const Sharded sharded = shard_each(*module, world);
    const at::Tensor w = module->second->bias;
    const std::vector<std::function<void()>> reads = {
        [&] { (void)w.data_ptr(); },
        [&] { (void)w.data_ptr<double>(); },
        [&] { (void)w.const_data_ptr<double>(); },
        [&] { (void)w.mutable_data_ptr<double>(); },
        [&] { (void)w.storage().data(); },
        [&] { (void)w.accessor<double, 1>()[0]; },
        [&] { (void)w.detach().data_ptr(); },
    };
    const auto expect_throws = [&] {
      for (std::size_t i = 0; i < reads.size(); ++i) {
        const std::string error = error_of(reads[i]);
        EXPECT_NE(error.find("second_bias"), std::string::npos) << i << ": " << error;
        EXPECT_NE(error.find("full_parameters"), std::string::npos) << i << ": " << error;
      }
    };
    expect_throws();
    {
      const auto whole = sharded.full_parameters();
      for (const auto& read : reads) {
        EXPECT_EQ(error_of(read), "");
      }
    }
    expect_throws();
  });
}

TEST(TouchAlias, SaveThrowsWhileFreedAndWorksInsideFullParameters) {
  run_threads(2, [](const World& world) {
    const TwoLayers module = two_layers();
    const Sharded sharded = shard_each(*module, world);
    std::ostringstream refused;
    const std::string error = error_of([&] { torch::save(module, refused); });
    EXPECT_NE(error.find("is sharded"), std::string::npos) << error;
    std::stringstream file;
    const auto whole = sharded.full_parameters();
    torch::save(module, file);
    TwoLayers loaded = two_layers();
    torch::load(loaded, file);
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_TRUE(at::equal(loaded->parameters()[i], module->parameters()[i])) << i;
      EXPECT_EQ(loaded->parameters()[i].storage().nbytes(),
                static_cast<std::size_t>(loaded->parameters()[i].numel()) * 8);
    }
  });
}

}  // namespace
}  // namespace fsdp::test
