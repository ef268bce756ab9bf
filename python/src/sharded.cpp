// SPDX-License-Identifier: Apache-2.0
#include "fsdp/engine/sharded.hpp"

#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/torch.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/touch/touch.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/engine/fully_shard.hpp"
#include "fsdp/engine/shard_access.hpp"
#include "fsdp/optim/clip.hpp"
#include "fsdp/optim/finite.hpp"
#include "python/src/bind.hpp"
#include "python/src/options.hpp"

namespace fsdp::python {

namespace {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

Sharded shard(std::vector<std::string> modules, NamedTensors parameters,
              const NamedTensors& buffers, const World& world, const py::dict& given) {
  Options options = options_of(given);
  TensorTree tree{.modules = std::move(modules), .parameters = std::move(parameters)};
  for (const auto& [name, buffer] : buffers) {
    tree.buffers.push_back({name, buffer});
  }
  const py::gil_scoped_release unlocked;
  return fully_shard(tree, world, std::move(options));
}

GradientSync sync_of(const std::string& word) {
  for (const auto& [name, value] : {std::pair("every_backward", GradientSync::kEveryBackward),
                                    std::pair("defer_replicate", GradientSync::kDeferReplicate),
                                    std::pair("defer_all", GradientSync::kDeferAll)}) {
    if (word == name) {
      return value;
    }
  }
  fail(ErrorCode::kInvalidArgument, "[set_gradient_sync] it is \"", word,
       "\", must be one of \"every_backward\", \"defer_replicate\", \"defer_all\"");
}

/// A scope of whole weights as a Python context holds it.
class FullScope {
 public:
  FullScope(Sharded sharded, bool writeback)
      : sharded_(std::move(sharded)), writeback_(writeback) {}
  void enter() { scope_.emplace(sharded_.full_parameters(writeback_)); }
  /// A scope whose end finds a fault in what it is to write back has the next call throw it: here.
  void exit() {
    if (scope_.has_value()) {
      scope_.reset();
      static_cast<void>(sharded_.shard_access()->flats());
    }
  }

 private:
  Sharded sharded_;
  bool writeback_;
  std::optional<FullParameters> scope_;
};

py::dict dict_of(const memory::Bytes& bytes) {
  py::dict dict;
  for (int kind = 0; kind < memory::kKinds; ++kind) {
    const auto value = bytes.by_kind[static_cast<std::size_t>(kind)];
    if (value != 0) {
      dict[memory::to_string(static_cast<memory::Kind>(kind))] = value;
    }
  }
  return dict;
}

void bind_report(py::module_& module) {
  py::class_<Counters> counters(module, "Counters");
  counters.def_readonly("gathers", &Counters::gathers)
      .def_readonly("gather_bytes", &Counters::gather_bytes)
      .def_readonly("reduce_scatters", &Counters::reduce_scatters)
      .def_readonly("reduce_bytes", &Counters::reduce_bytes)
      .def_readonly("padding_bytes", &Counters::padding_bytes)
      .def_readonly("secondary_gathers", &Counters::secondary_gathers)
      .def_readonly("replica_reductions", &Counters::replica_reductions)
      .def_readonly("replica_bytes", &Counters::replica_bytes)
      .def_readonly("refreshes", &Counters::refreshes)
      .def_readonly("refresh_bytes", &Counters::refresh_bytes)
      .def_readonly("touches", &Counters::touches)
      .def_readonly("casts", &Counters::casts)
      .def_readonly("transfers", &Counters::transfers)
      .def_readonly("transfer_bytes", &Counters::transfer_bytes)
      .def_readonly("prefetch_misses", &Counters::prefetch_misses);
  py::class_<UnitInfo>(module, "UnitInfo")
      .def_readonly("name", &UnitInfo::name)
      .def_property_readonly("strategy",
                             [](const UnitInfo& unit) {
                               std::string word = to_string(unit.strategy);
                               std::replace(word.begin(), word.end(), '-', '_');
                               return word;
                             })
      .def_readonly("numel", &UnitInfo::numel)
      .def_readonly("padded_numel", &UnitInfo::padded_numel)
      .def_readonly("shard_numel", &UnitInfo::shard_numel)
      .def_readonly("itemsize", &UnitInfo::itemsize)
      .def_readonly("gathered_itemsize", &UnitInfo::gathered_itemsize)
      .def_readonly("parameters", &UnitInfo::parameters)
      .def_readonly("stays_gathered", &UnitInfo::stays_gathered)
      .def_readonly("is_optional", &UnitInfo::is_optional)
      .def_readonly("is_unsharded", &UnitInfo::is_unsharded);
  py::class_<Report>(module, "Report")
      .def_readonly("ranks", &Report::ranks)
      .def_readonly("units", &Report::units)
      .def_readonly("unsharded_numel", &Report::unsharded_numel)
      .def_readonly("counters", &Report::counters)
      .def_readonly("peak_total", &Report::peak_total)
      .def_property_readonly("promise", [](const Report& of) { return dict_of(of.promise); })
      .def_property_readonly("live", [](const Report& of) { return dict_of(of.live); })
      .def_property_readonly("peak", [](const Report& of) { return dict_of(of.peak); })
      .def("__str__", [](const Report& report) { return to_string(report); })
      .def("__repr__", [](const Report& report) { return to_string(report); });
}

void bind_shards(py::module_& module) {
  py::class_<NamedShard>(module, "NamedShard")
      .def_readonly("name", &NamedShard::name)
      .def_readonly("parameter", &NamedShard::parameter)
      .def_readonly("shard", &NamedShard::shard)
      .def_readonly("begin", &NamedShard::begin)
      .def_readonly("sizes", &NamedShard::sizes)
      .def_readonly("aliases", &NamedShard::aliases)
      .def_readonly("unit", &NamedShard::unit)
      .def_readonly("answered_begin", &NamedShard::answered_begin)
      .def_readonly("answered_numel", &NamedShard::answered_numel)
      .def("__repr__", [](const NamedShard& shard) {
        return "NamedShard(\"" + shard.name + "\", elements " + std::to_string(shard.begin) +
               " to " + std::to_string(shard.begin + shard.shard.numel()) + ")";
      });
}

}  // namespace

void bind_sharded(py::module_& module) {
  bind_report(module);
  bind_shards(module);
  py::class_<FullScope>(module, "FullScope")
      .def("enter", &FullScope::enter, Unlocked())
      .def("exit", &FullScope::exit, Unlocked());
  py::class_<BadGradient>(module, "BadGradient")
      .def_readonly("parameter", &BadGradient::parameter)
      .def_readonly("rank", &BadGradient::rank)
      .def_readonly("made_by", &BadGradient::made_by);
  py::class_<GradientCheck>(module, "GradientCheck")
      .def_readonly("norm", &GradientCheck::norm)
      .def_readonly("is_skipped", &GradientCheck::is_skipped)
      .def_readonly("bad", &GradientCheck::bad);
  py::class_<Sharded>(module, "Sharded")
      .def("parameters", &Sharded::parameters, Unlocked())
      .def("named_shards", &Sharded::named_parameters, Unlocked())
      .def("mark_written", &Sharded::mark_written, Unlocked())
      .def("zero_grad", &Sharded::zero_grad, Unlocked())
      .def("reshard", &Sharded::reshard, Unlocked())
      .def(
          "set_gradient_sync",
          [](Sharded& sharded, const std::string& sync) {
            sharded.set_gradient_sync(sync_of(sync));
          },
          py::arg("sync"), Unlocked())
      .def(
          "set_gradient_divisor",
          [](Sharded& sharded, double divisor) { sharded.set_gradient_divisor(divisor); },
          py::arg("divisor"), Unlocked())
      .def(
          "on_reduced",
          [](Sharded& sharded, ReducedHook hook) {
            const py::gil_scoped_release unlocked;
            return sharded.on_reduced(std::move(hook));
          },
          py::arg("hook"))
      .def("remove_on_reduced", &Sharded::remove_on_reduced, py::arg("id"), Unlocked())
      .def(
          "participate",
          [](const Sharded& sharded, const std::string& unit) { return sharded.participate(unit); },
          py::arg("unit"), Unlocked())
      .def(
          "full_scope",
          [](const Sharded& sharded, bool writeback) { return FullScope(sharded, writeback); },
          py::arg("writeback"))
      .def("report", &Sharded::report, Unlocked())
      .def("reset_counters", &Sharded::reset_counters, Unlocked())
      .def("world", &Sharded::world)
      .def("is_sharded", &Sharded::is_sharded, py::arg("tensor"), Unlocked());

  module.def("fully_shard", &shard, py::arg("modules"), py::arg("parameters"), py::arg("buffers"),
             py::arg("world"), py::arg("options"));
  module.def(
      "grad_norm",
      [](const std::vector<Sharded>& shardeds, double p, const std::vector<at::Tensor>& whole) {
        return grad_norm(shardeds, p, whole);
      },
      py::arg("shardeds"), py::arg("norm_type"), py::arg("whole"), Unlocked());
  module.def(
      "clip_grad_norm_",
      [](const std::vector<Sharded>& shardeds, double max_norm, double p,
         const std::vector<at::Tensor>& whole) {
        return clip_grad_norm_(shardeds, max_norm, p, whole);
      },
      py::arg("shardeds"), py::arg("max_norm"), py::arg("norm_type"), py::arg("whole"), Unlocked());
  module.def("clip_grad_value_", &clip_grad_value_, py::arg("sharded"), py::arg("max_value"),
             Unlocked());
  module.def("find_bad_gradient", &find_bad_gradient, py::arg("sharded"), Unlocked());
  module.def("skip_step", &skip_step, py::arg("sharded"), py::arg("norm"), Unlocked());
  module.def(
      "has_touch_key",
      [](const at::Tensor& tensor) {
        return tensor.defined() && tensor.key_set().has(engine::kTouchKey);
      },
      py::arg("tensor"),
      "Whether the tensor is a weight, shard or gradient of a sharded module, or an alias of one.");
  module.def(
      "has_memory",
      [](const at::Tensor& tensor) {
        return tensor.numel() == 0 || tensor.storage().unsafeGetStorageImpl()->data() != nullptr;
      },
      py::arg("tensor"));
}

}  // namespace fsdp::python
