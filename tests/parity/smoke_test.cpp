#include <gtest/gtest.h>
#include <torch/torch.h>
#include "fsdp/fsdp.hpp"
namespace {
struct Net : torch::nn::Module {
  torch::nn::Linear a{nullptr}, b{nullptr}, c{nullptr};
  Net() { a = register_module("a", torch::nn::Linear(5, 7)); b = register_module("b", torch::nn::Linear(7, 7)); c = register_module("c", torch::nn::Linear(7, 3)); }
  torch::Tensor forward(torch::Tensor x) { return c(torch::relu(b(torch::relu(a(x))))); }
};
TEST(Smoke, TrainsLikeOneProcess) {
  for (int n : {1, 2, 3}) {
    torch::manual_seed(1);
    auto reference = std::make_shared<Net>(); reference->to(torch::kDouble);
    torch::optim::SGD ro(reference->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    auto x = torch::randn({12, 5}, torch::kDouble);
    auto initial = reference->parameters(); std::vector<torch::Tensor> init; for (auto& p : initial) init.push_back(p.detach().clone());
    for (int s = 0; s < 5; ++s) { ro.zero_grad(); reference->forward(x).square().mean().backward(); ro.step(); }
    fsdp::run_threads(n, [&](fsdp::World w) {
      auto net = std::make_shared<Net>(); net->to(torch::kDouble);
      { torch::NoGradGuard g; auto ps = net->parameters(); for (size_t i = 0; i < ps.size(); ++i) ps[i].copy_(init[i]); }
      auto sh = fsdp::fully_shard(net, w, {.units = fsdp::units_of<torch::nn::Linear>(), .align_bytes = 0});
      torch::optim::SGD o(sh.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      auto mine = x.chunk(n)[w.rank()];
      for (int s = 0; s < 5; ++s) { o.zero_grad(); net->forward(mine).square().mean().backward(); o.step(); 
        auto c = sh.counters(); if (w.rank()==0) std::cout << n << " gathers " << c.gathers << " rs " << c.reduce_scatters << " touches " << c.touches << " miss " << c.prefetch_misses << "\n"; sh.reset_counters(); }
      auto full = sh.full_parameters();
      auto ps = net->parameters(), rp = reference->parameters();
      for (size_t i = 0; i < ps.size(); ++i) EXPECT_LT((ps[i] - rp[i]).abs().max().item<double>(), 1e-12) << i;
    });
  }
}
}
