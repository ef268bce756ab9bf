// SPDX-License-Identifier: Apache-2.0
#include "support/subjects.hpp"

#include <gtest/gtest.h>

#include <mutex>
#include <utility>

#include "fsdp/models/gpt.hpp"

namespace fsdp::test {

namespace nn = torch::nn;

std::vector<at::Tensor> Subject::parameters() const {
  if (module != nullptr) {
    return module->parameters();
  }
  std::vector<at::Tensor> tensors;
  for (const at::Tensor& tensor : script->parameters()) {
    tensors.push_back(tensor);
  }
  return tensors;
}

at::Tensor Subject::loss_of(int rank, int size) const {
  const std::int64_t rows = kRows / size;
  return loss(x.narrow(0, rank * rows, rows), y.narrow(0, rank * rows, rows));
}

Sharded Subject::shard(const World& world, Options options) const {
  return module != nullptr ? fully_shard(module, world, std::move(options))
                           : fully_shard(*script, world, std::move(options));
}

namespace {

at::Tensor squared_error(const at::Tensor& prediction, const at::Tensor& y) {
  return (prediction - y).square().mean();
}

/// A subject that predicts y by `forward` of a module of type M.
template <class M, class... Arguments>
Subject regression(Units units, std::vector<std::int64_t> x_sizes, std::int64_t y_size,
                   at::ScalarType dtype, Arguments... arguments) {
  auto module = std::make_shared<M>(arguments...);
  module->to(dtype);
  x_sizes.insert(x_sizes.begin(), kRows);
  Subject subject{.module = module, .units = std::move(units)};
  subject.x = torch::randn(x_sizes, dtype);
  subject.y = torch::randn({kRows, y_size}, dtype);
  subject.loss = [module](const at::Tensor& x, const at::Tensor& y) {
    return squared_error(module->forward(x), y);
  };
  return subject;
}

struct OddMlp : nn::Module {
  OddMlp() : a(register_module("a", nn::Linear(5, 7))), b(register_module("b", nn::Linear(7, 3))) {}
  at::Tensor forward(const at::Tensor& x) { return b(torch::relu(a(x))); }
  nn::Linear a, b;
};

struct UsedTwice : nn::Module {
  UsedTwice()
      : twice(register_module("twice", nn::Linear(3, 3))),
        last(register_module("last", nn::Linear(3, 2))) {}
  at::Tensor forward(const at::Tensor& x) {
    return last(torch::relu(twice(torch::relu(twice(x)))));
  }
  nn::Linear twice, last;
};

struct Inner : nn::Module {
  Inner() : linear(register_module("linear", nn::Linear(4, 4))) {}
  at::Tensor forward(const at::Tensor& x) { return torch::tanh(linear(x)); }
  nn::Linear linear;
};

struct Outer : nn::Module {
  Outer()
      : before(register_module("before", nn::Linear(4, 4))),
        inner(register_module("inner", std::make_shared<Inner>())),
        after(register_module("after", nn::Linear(4, 4))) {}
  at::Tensor forward(const at::Tensor& x) { return after(inner->forward(before(x))); }
  nn::Linear before;
  std::shared_ptr<Inner> inner;
  nn::Linear after;
};

struct Nested : nn::Module {
  Nested()
      : scale(register_parameter("scale", torch::rand({}))),
        outer(register_module("outer", std::make_shared<Outer>())),
        head(register_module("head", nn::Linear(4, 2))) {}
  at::Tensor forward(const at::Tensor& x) { return head(outer->forward(x) * scale) * scale; }
  at::Tensor scale;
  std::shared_ptr<Outer> outer;
  nn::Linear head;
};

struct Convolution : nn::Module {
  Convolution()
      : first(register_module("first", nn::Conv2d(2, 3, 3))),
        second(register_module("second", nn::Conv2d(nn::Conv2dOptions(3, 5, 2).bias(false)))),
        head(register_module("head", nn::Linear(5 * 9, 2))) {}
  at::Tensor forward(const at::Tensor& x) {
    return head(torch::relu(second(torch::relu(first(x)))).flatten(1));
  }
  nn::Conv2d first, second;
  nn::Linear head;
};

struct Recurrent : nn::Module {
  Recurrent()
      : lstm(register_module(
            "lstm",
            nn::LSTM(nn::LSTMOptions(3, 5).num_layers(2).bidirectional(true).batch_first(true)))),
        head(register_module("head", nn::Linear(10, 2))) {}
  at::Tensor forward(const at::Tensor& x) { return head(std::get<0>(lstm(x)).select(1, -1)); }
  nn::LSTM lstm;
  nn::Linear head;
};

/// No bias in front of the norm: its true gradient is zero, and there is no relative error of
/// noise.
struct Normalised : nn::Module {
  Normalised()
      : first(register_module("first", nn::Linear(nn::LinearOptions(4, 6).bias(false)))),
        norm(register_module("norm", nn::BatchNorm1d(6))),
        last(register_module("last", nn::Linear(6, 2))) {}
  at::Tensor forward(const at::Tensor& x) { return last(torch::relu(norm(first(x)))); }
  nn::Linear first;
  nn::BatchNorm1d norm;
  nn::Linear last;
};

struct Rows : nn::Module {
  explicit Rows(const std::vector<std::int64_t>& sizes) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      weights.push_back(register_parameter("w" + std::to_string(i), torch::randn({sizes[i], 1})));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor sum = torch::zeros_like(x);
    for (const at::Tensor& weight : weights) {
      sum = sum + x * weight.sum();
    }
    return sum;
  }
  std::vector<at::Tensor> weights;
};

}  // namespace

SubjectKind odd_mlp() {
  return {"OddMlp", [](at::ScalarType dtype) {
            return regression<OddMlp>(units_of<nn::Linear>(), {5}, 3, dtype);
          }};
}

SubjectKind tiny_gpt(bool tied) {
  return {tied ? "TiedGpt" : "UntiedGpt", [tied](at::ScalarType dtype) {
            models::GPTConfig config;
            config.vocab = 11;
            config.width = 6;
            config.layers = 2;
            config.heads = 2;
            config.context = 5;
            config.tied = tied;
            models::GPT model(config);
            model->to(dtype);
            Subject subject{.module = model.ptr(), .units = units_of<models::Block>()};
            subject.x = torch::randint(0, 11, {kRows, 5}, torch::kLong);
            subject.y = torch::randint(0, 11, {kRows, 5}, torch::kLong);
            subject.loss = [model](const at::Tensor& x, const at::Tensor& y) mutable {
              return model->forward(x, y);
            };
            return subject;
          }};
}

SubjectKind script_module() {
  return {
      "Script", [](at::ScalarType dtype) {
        auto script = std::make_shared<torch::jit::Module>("Scripted");
        torch::jit::Module hidden("Hidden");
        hidden.register_parameter("weight", torch::randn({7, 4}, dtype).requires_grad_(), false);
        hidden.register_parameter("bias", torch::randn({7}, dtype).requires_grad_(), false);
        hidden.define(
            "def forward(self, x):\n  return torch.relu(torch.linear(x, self.weight, "
            "self.bias))\n");
        script->register_module("hidden", hidden);
        script->register_parameter("head", torch::randn({2, 7}, dtype).requires_grad_(), false);
        script->define(
            "def forward(self, x):\n  return torch.linear(self.hidden.forward(x), self.head)\n");
        Subject subject{.module = nullptr, .script = *script, .units = units_listed({"hidden"})};
        subject.x = torch::randn({kRows, 4}, dtype);
        subject.y = torch::randn({kRows, 2}, dtype);
        subject.loss = [script](const at::Tensor& x, const at::Tensor& y) {
          return squared_error(script->forward({x}).toTensor(), y);
        };
        return subject;
      }};
}

SubjectKind unit_used_twice() {
  return {"UsedTwice", [](at::ScalarType dtype) {
            return regression<UsedTwice>(units_of<nn::Linear>(), {3}, 2, dtype);
          }};
}

SubjectKind nested_units() {
  return {"Nested", [](at::ScalarType dtype) {
            return regression<Nested>(units_matching("outer|outer\\.inner|head"), {4}, 2, dtype);
          }};
}

SubjectKind convolution() {
  return {"Convolution", [](at::ScalarType dtype) {
            return regression<Convolution>(units_of<nn::Conv2d>(), {2, 6, 6}, 2, dtype);
          }};
}

SubjectKind lstm() {
  return {"Lstm", [](at::ScalarType dtype) {
            return regression<Recurrent>(units_of<nn::LSTM>(), {4, 3}, 2, dtype);
          }};
}

SubjectKind batch_norm() {
  return {"BatchNorm", [](at::ScalarType dtype) {
            Subject subject = regression<Normalised>(units_larger_than(12), {4}, 2, dtype);
            subject.reference_by_part = true;
            return subject;
          }};
}

SubjectKind rows(std::vector<std::int64_t> sizes) {
  return {"Rows",
          [sizes](at::ScalarType dtype) { return regression<Rows>({}, {1}, 1, dtype, sizes); }};
}

std::vector<SubjectKind> all_subject_kinds() {
  return {odd_mlp(),      tiny_gpt(false), tiny_gpt(true), script_module(), unit_used_twice(),
          nested_units(), convolution(),   lstm(),         batch_norm()};
}

Subject make_subject(const SubjectKind& kind, at::ScalarType dtype) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  torch::manual_seed(7);
  return kind.make(dtype);
}

OptimizerFactory sgd_with_momentum() {
  return [](std::vector<at::Tensor> parameters) {
    return std::make_shared<torch::optim::SGD>(std::move(parameters),
                                               torch::optim::SGDOptions(0.05).momentum(0.9));
  };
}

OptimizerFactory adam() {
  return [](std::vector<at::Tensor> parameters) {
    return std::make_shared<torch::optim::Adam>(std::move(parameters),
                                                torch::optim::AdamOptions(1e-2).eps(1e-4));
  };
}

Snapshot train_reference(const SubjectKind& kind, int size, const OptimizerFactory& make_optimizer,
                         int steps, at::ScalarType dtype) {
  const Subject subject = make_subject(kind, dtype);
  const std::vector<at::Tensor> parameters = subject.parameters();
  auto optimizer = make_optimizer(parameters);
  Snapshot snapshot;
  for (int step = 0; step < steps; ++step) {
    optimizer->zero_grad();
    if (subject.reference_by_part) {
      for (int rank = 0; rank < size; ++rank) {
        (subject.loss_of(rank, size) / size).backward();
      }
    } else {
      subject.loss_of(0, 1).backward();
    }
    for (std::size_t i = 0; step == 0 && i < parameters.size(); ++i) {
      snapshot.first_gradients.push_back(parameters[i].grad().clone());
    }
    optimizer->step();
  }
  for (const at::Tensor& parameter : parameters) {
    snapshot.parameters.push_back(parameter.detach().clone());
  }
  return snapshot;
}

std::vector<at::Tensor> whole_gradients(const Sharded& sharded) {
  torch::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const NamedShard& parameter : sharded.named_parameters()) {
    std::int64_t numel = 1;
    for (std::int64_t size : parameter.sizes) {
      numel *= size;
    }
    at::Tensor whole = torch::zeros({numel}, parameter.shard.options());
    if (parameter.shard.grad().defined()) {
      whole.narrow(0, parameter.begin + parameter.answered_begin, parameter.answered_numel)
          .copy_(
              parameter.shard.grad().narrow(0, parameter.answered_begin, parameter.answered_numel));
    }
    // One rank answers for each element, so the sum puts the pieces together.
    sharded.world().transport().all_reduce(whole, {.name = "whole_gradients"});
    gradients.push_back(whole.view(parameter.sizes));
  }
  return gradients;
}

Snapshot train_sharded(const SubjectKind& kind, const World& world, const Options& options,
                       const OptimizerFactory& make_optimizer, int steps, at::ScalarType dtype) {
  const Subject subject = make_subject(kind, dtype);
  const std::vector<at::Tensor> parameters = subject.parameters();
  Sharded sharded = subject.shard(world, options);
  auto optimizer = make_optimizer(sharded.parameters());
  Snapshot snapshot;
  for (int step = 0; step < steps; ++step) {
    optimizer->zero_grad();
    subject.loss_of(world.rank(), world.size()).backward();
    if (step == 0) {
      snapshot.first_gradients = whole_gradients(sharded);
    }
    optimizer->step();
  }
  EXPECT_EQ(sharded.report().unsharded_numel, 0);
  const FullParameters full = sharded.full_parameters();
  for (const at::Tensor& parameter : parameters) {
    snapshot.parameters.push_back(parameter.detach().clone());
  }
  return snapshot;
}

namespace {
void expect_close(const at::Tensor& actual, const at::Tensor& expected, const std::string& what) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  if (actual.numel() == 0) {
    return;
  }
  const double bound = actual.scalar_type() == at::kDouble
                           ? 1e-12
                           : 1e-5 * expected.abs().max().to(at::kDouble).item<double>();
  const double difference = (actual - expected).abs().max().to(at::kDouble).item<double>();
  EXPECT_LE(difference, bound) << what;
}
}  // namespace

void expect_parity(const Snapshot& actual, const Snapshot& expected) {
  ASSERT_EQ(actual.parameters.size(), expected.parameters.size());
  for (std::size_t i = 0; i < expected.parameters.size(); ++i) {
    expect_close(actual.parameters[i], expected.parameters[i], "parameter " + std::to_string(i));
  }
  ASSERT_EQ(actual.first_gradients.size(), expected.first_gradients.size());
  for (std::size_t i = 0; i < expected.first_gradients.size(); ++i) {
    expect_close(actual.first_gradients[i], expected.first_gradients[i],
                 "gradient " + std::to_string(i));
  }
}

Options test_options(Units units, std::int64_t align_bytes, int prefetch) {
  return {.units = std::move(units),
          .memory = {.prefetch = prefetch, .align_bytes = align_bytes},
          .debug = {.print_promise = false, .poison_freed = true}};
}

}  // namespace fsdp::test
