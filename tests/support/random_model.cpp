// SPDX-License-Identifier: Apache-2.0
#include "support/random_model.hpp"

#include <ATen/CPUGeneratorImpl.h>

#include <sstream>

namespace fsdp::test {

namespace nn = torch::nn;

namespace {

/// Frozen, tied, skipped or unused: what layers may be beside plain.
void draw_extras(Draw& draw, std::vector<LayerPlan>& layers, LayerPlan& layer) {
  const bool is_first = layers.empty();
  const bool is_square = layer.in == layer.out;
  layer.is_residual = is_square && draw.one_in(3);
  layer.is_branch = is_square && !is_first && draw.one_in(5);
  layer.is_side_output = is_square && !is_first && !layer.is_branch && draw.one_in(9);
  layer.repeats = is_square && draw.one_in(4) ? draw.between(2, 3) : 1;
  layer.is_unit = draw.one_in(2);
  layer.is_weight_frozen = !is_first && draw.one_in(5);
  layer.is_bias_frozen = draw.one_in(6);
  if (layer.kind != LayerKind::kLinear || !draw.one_in(3)) {
    return;
  }
  for (int other = 0; other < static_cast<int>(layers.size()); ++other) {
    const LayerPlan& earlier = layers[static_cast<std::size_t>(other)];
    if (earlier.kind == LayerKind::kLinear && earlier.in == layer.in && earlier.out == layer.out) {
      layer.tied_to = earlier.tied_to >= 0 ? earlier.tied_to : other;
      layer.is_weight_frozen = layers[static_cast<std::size_t>(layer.tied_to)].is_weight_frozen;
      return;
    }
  }
}

}  // namespace

RandomPlan draw_plan(std::uint64_t seed) {
  Draw draw(seed);
  RandomPlan plan;
  plan.seed = seed;
  plan.ranks = draw.any_of<int>({1, 2, 2, 3, 4, 4, 6});
  const std::vector<int> widths{1, 3, 4, 4, 7};
  const int depth = draw.between(1, 7);
  int width = draw.any_of(widths);
  for (int i = 0; i < depth; ++i) {
    LayerPlan layer{
        .kind = draw.any_of<LayerKind>({LayerKind::kLinear, LayerKind::kLinear, LayerKind::kNorm,
                                        LayerKind::kTwoLinears, LayerKind::kScale}),
        .in = width};
    const bool keeps_width = layer.kind != LayerKind::kLinear || draw.one_in(2);
    layer.out = keeps_width ? width : draw.any_of(widths);
    layer.has_bias = !draw.one_in(3);
    draw_extras(draw, plan.layers, layer);
    width = layer.out;
    plan.layers.push_back(layer);
  }
  // Whatever is frozen or skipped, this one trains.
  plan.layers.push_back({.kind = LayerKind::kScale, .in = width, .out = width});
  plan.rows = draw.between(1, 3);
  for (int step = 0; step < plan.steps; ++step) {
    plan.micro_batches.push_back(draw.one_in(3) ? draw.between(2, 3) : 1);
  }
  plan.evaluates = draw.one_in(3);
  plan.reads_full = draw.one_in(4);
  plan.has_adam = draw.one_in(2);
  plan.is_low_precision = draw.one_in(5);
  plan.has_adam = plan.has_adam && !plan.is_low_precision;  // it makes much of small gradients
  plan.frozen_from = draw.one_in(6) ? draw.between(1, plan.steps - 1) : -1;
  return plan;
}

std::string to_string(const RandomPlan& plan) {
  std::ostringstream text;
  text << "seed " << plan.seed << ": " << plan.ranks << " ranks, "
       << (plan.has_adam ? "adam" : "sgd") << ", micro-batches";
  for (const int count : plan.micro_batches) {
    text << " " << count;
  }
  text << (plan.evaluates ? ", evaluates" : "") << (plan.reads_full ? ", reads full" : "");
  if (plan.frozen_from >= 0) {
    text << ", first weight frozen from step " << plan.frozen_from;
  }
  text << ";";
  for (const LayerPlan& layer : plan.layers) {
    constexpr const char* kNames[] = {"linear", "norm", "two", "scale"};
    text << " " << kNames[static_cast<int>(layer.kind)] << layer.in << "x" << layer.out
         << (layer.has_bias ? "+b" : "") << (layer.is_unit ? " unit" : "")
         << (layer.is_residual ? " residual" : "") << (layer.is_branch ? " branch" : "")
         << (layer.is_side_output ? " side" : "") << (layer.is_weight_frozen ? " frozen" : "")
         << (layer.is_bias_frozen ? " frozen-bias" : "");
    if (layer.tied_to >= 0) {
      text << " tied to " << layer.tied_to;
    }
    text << (layer.repeats > 1 ? " x" + std::to_string(layer.repeats) : "") << ",";
  }
  return text.str();
}

namespace {

struct TwoLinearsImpl : nn::Module {
  TwoLinearsImpl(int width, bool has_bias)
      : up(register_module("up", nn::Linear(nn::LinearOptions(width, width + 2).bias(has_bias)))),
        down(register_module("down", nn::Linear(width + 2, width))) {}
  at::Tensor forward(const at::Tensor& x) { return down(torch::tanh(up(x))); }
  nn::Linear up, down;
};
TORCH_MODULE(TwoLinears);

struct ScaleImpl : nn::Module {
  explicit ScaleImpl(int width)
      : weight(register_parameter("weight", torch::rand({width}))),
        bias(register_parameter("bias", torch::rand({}))) {}
  at::Tensor forward(const at::Tensor& x) { return x * weight + bias; }
  at::Tensor weight, bias;
};
TORCH_MODULE(Scale);

}  // namespace

RandomNetImpl::RandomNetImpl(const RandomPlan& plan) : plan_(plan) {
  torch::manual_seed(plan.seed);
  for (std::size_t i = 0; i < plan.layers.size(); ++i) {
    add_layer(static_cast<int>(i), plan.layers[i]);
  }
  to(at::kDouble);
  for (std::size_t i = 0; i < plan.layers.size(); ++i) {
    const LayerPlan& layer = plan.layers[i];
    if (layer.tied_to >= 0) {
      tie_weights(*modules_[static_cast<std::size_t>(layer.tied_to)], "weight", *modules_[i],
                  "weight");
    }
    for (auto& parameter : modules_[i]->named_parameters()) {
      const bool is_bias = parameter.key().find("bias") != std::string::npos;
      if (is_bias ? layer.is_bias_frozen : layer.is_weight_frozen) {
        parameter.value().set_requires_grad(false);
      }
    }
  }
}

void RandomNetImpl::add_layer(int index, const LayerPlan& plan) {
  const std::string name = "layer" + std::to_string(index);
  const auto add = [&](auto holder) {
    register_module(name, holder);
    modules_.push_back(holder.ptr());
    layers_.push_back({plan, [holder](const at::Tensor& x) mutable { return holder(x); }});
  };
  switch (plan.kind) {
    case LayerKind::kLinear:
      add(nn::Linear(nn::LinearOptions(plan.in, plan.out).bias(plan.has_bias)));
      break;
    case LayerKind::kNorm: add(nn::LayerNorm(nn::LayerNormOptions({plan.in}))); break;
    case LayerKind::kTwoLinears: add(TwoLinears(plan.in, plan.has_bias)); break;
    case LayerKind::kScale: add(Scale(plan.in)); break;
  }
}

at::Tensor RandomNetImpl::forward(at::Tensor x, int step) {
  for (Layer& layer : layers_) {
    if (layer.plan.is_branch && step % 2 == 1) {
      continue;
    }
    for (int run = 0; run < layer.plan.repeats; ++run) {
      const at::Tensor y = torch::tanh(layer.run(x));
      if (!layer.plan.is_side_output) {
        x = layer.plan.is_residual ? x + y : y;
      }
    }
  }
  return x;
}

at::Tensor RandomNetImpl::input(int step, int micro_batch, int rank) const {
  const auto seed = static_cast<std::uint64_t>((step * 16 + micro_batch) * 16 + rank + 1);
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return torch::randn({plan_.rows, plan_.layers.front().in}, generator,
                      torch::TensorOptions(at::kDouble));
}

at::Tensor RandomNetImpl::loss(int step, int micro_batch, int rank) {
  const at::Tensor x = input(step, micro_batch, rank);
  const at::Tensor y =
      forward(plan_.is_low_precision ? x.to(parameters().front().dtype()) : x, step)
          .to(at::kDouble);
  return (y - 0.3).square().mean() + 0.1 * y.sum();
}

void RandomNetImpl::freeze_for(int step) {
  if (plan_.frozen_from >= 0 && step == plan_.frozen_from) {
    modules_.front()->parameters().front().set_requires_grad(false);
  }
}

Units RandomNetImpl::units() const {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < plan_.layers.size(); ++i) {
    if (plan_.layers[i].is_unit) {
      names.push_back("layer" + std::to_string(i));
    }
  }
  return units_listed(names);
}

}  // namespace fsdp::test
