// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/torch.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/error.hpp"
#include "fsdp/optim/adamw.hpp"
#include "fsdp/optim/ema.hpp"
#include "fsdp/optim/flat_optimizer.hpp"
#include "fsdp/optim/lion.hpp"
#include "fsdp/optim/loss_scaler.hpp"
#include "fsdp/optim/muon.hpp"
#include "fsdp/optim/sgd.hpp"
#include "python/src/bind.hpp"

namespace fsdp::python {

namespace {

using Values = std::map<std::string, double>;
/// Names of parameters, and hyper-parameters.
using PlainGroup = std::pair<std::vector<std::string>, Values>;

template <class Options>
Options from(const Values& values, std::span<const optim::Field<Options>> fields) {
  Options options;
  optim::from_values(options, fields, values);
  return options;
}

template <class Rule>
void bind_element_wise(py::module_& module) {
  using Optimizer = optim::ElementWise<Rule>;
  py::class_<Optimizer, optim::FlatOptimizer>(module, Rule::kName)
      .def(py::init([](const Sharded& sharded, const std::vector<PlainGroup>& groups) {
             std::vector<optim::Group<typename Rule::Options>> made;
             for (const auto& [names, values] : groups) {
               made.push_back({names, from<typename Rule::Options>(values, Rule::fields())});
             }
             return std::make_unique<Optimizer>(sharded, std::move(made));
           }),
           py::arg("sharded"), py::arg("groups"), Unlocked());
}

void bind_muon(py::module_& module) {
  py::class_<optim::Muon, optim::FlatOptimizer>(module, "Muon")
      .def(py::init([](const Sharded& sharded, double lr, double momentum, bool nesterov,
                       double weight_decay, int iterations, bool matches_adamw,
                       std::optional<at::ScalarType> dtype, std::int64_t batch_bytes,
                       std::vector<std::string> by_adamw, const Values& others) {
             return std::make_unique<optim::Muon>(
                 sharded,
                 optim::MuonOptions{.lr = lr,
                                    .momentum = momentum,
                                    .nesterov = nesterov,
                                    .weight_decay = weight_decay,
                                    .iterations = iterations,
                                    .scale = matches_adamw ? optim::MuonScale::kMatchAdamW
                                                           : optim::MuonScale::kShape,
                                    .dtype = dtype.value_or(at::ScalarType::Undefined),
                                    .batch_bytes = batch_bytes},
                 std::move(by_adamw),
                 from<optim::AdamWOptions>(others, optim::AdamWRule::fields()));
           }),
           py::arg("sharded"), py::arg("lr"), py::arg("momentum"), py::arg("nesterov"),
           py::arg("weight_decay"), py::arg("iterations"), py::arg("matches_adamw"),
           py::arg("dtype"), py::arg("batch_bytes"), py::arg("by_adamw"), py::arg("others"),
           Unlocked())
      .def("matrices", &optim::Muon::matrices, Unlocked());
}

void bind_loss_scaler(py::module_& module) {
  py::class_<LossScaler>(module, "LossScaler")
      .def(py::init([](const Sharded& sharded, double init_scale, double growth_factor,
                       double backoff_factor, int growth_interval, bool enabled) {
             return LossScaler(sharded, {.init_scale = init_scale,
                                         .growth_factor = growth_factor,
                                         .backoff_factor = backoff_factor,
                                         .growth_interval = growth_interval,
                                         .enabled = enabled});
           }),
           py::arg("sharded"), py::arg("init_scale"), py::arg("growth_factor"),
           py::arg("backoff_factor"), py::arg("growth_interval"), py::arg("enabled"), Unlocked())
      .def("scale", &LossScaler::scale, py::arg("loss"), Unlocked())
      .def("unscale_", &LossScaler::unscale_, py::arg("max_norm"), Unlocked())
      .def("update", &LossScaler::update, Unlocked())
      .def("current_scale", &LossScaler::current_scale)
      .def("state",
           [](const LossScaler& scaler) {
             return std::pair(scaler.state().scale, scaler.state().growth_tracker);
           })
      .def(
          "set_state",
          [](LossScaler& scaler, double scale, std::int64_t growth_tracker) {
            scaler.set_state({.scale = scale, .growth_tracker = growth_tracker});
          },
          py::arg("scale"), py::arg("growth_tracker"));
}

void bind_ema(py::module_& module) {
  py::class_<optim::Ema>(module, "Ema")
      .def(py::init<Sharded, double>(), py::arg("sharded"), py::arg("decay"), Unlocked())
      .def("update", &optim::Ema::update, Unlocked())
      .def_property("decay", &optim::Ema::decay, &optim::Ema::set_decay)
      .def("averages",
           [](const optim::Ema& ema) {
             std::vector<std::pair<std::string, at::Tensor>> averages;
             for (const optim::NamedAverage& average : ema.averages()) {
               averages.emplace_back(average.name, average.average);
             }
             return averages;
           })
      .def(
          "swap_in",
          [](optim::Ema& ema) {
            return std::unique_ptr<optim::Ema::Scope>(new optim::Ema::Scope(ema.swap_in()));
          },
          py::keep_alive<0, 1>(), Unlocked());
  py::class_<optim::Ema::Scope>(module, "EmaScope").def("end", &optim::Ema::Scope::end, Unlocked());
}

}  // namespace

void bind_optimizers(py::module_& module) {
  py::class_<optim::FlatOptimizer>(module, "FlatOptimizer")
      .def("step", &optim::FlatOptimizer::step, Unlocked())
      .def("zero_grad", &optim::FlatOptimizer::zero_grad, Unlocked())
      .def("steps", &optim::FlatOptimizer::steps, Unlocked())
      .def("kind", &optim::FlatOptimizer::kind)
      .def("untrained", &optim::FlatOptimizer::untrained)
      .def("values", &optim::FlatOptimizer::values, py::arg("group"), Unlocked())
      .def("set_values", &optim::FlatOptimizer::set_values, py::arg("group"), py::arg("values"),
           Unlocked());
  bind_element_wise<optim::AdamWRule>(module);
  bind_element_wise<optim::SGDRule>(module);
  bind_element_wise<optim::LionRule>(module);
  bind_muon(module);
  bind_loss_scaler(module);
  bind_ema(module);
}

}  // namespace fsdp::python
