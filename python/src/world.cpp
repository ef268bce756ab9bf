// SPDX-License-Identifier: Apache-2.0
#include "fsdp/comm/world.hpp"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/torch.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/comm/agreement.hpp"
#include "fsdp/comm/mean.hpp"
#include "fsdp/comm/mesh.hpp"
#include "fsdp/comm/transports.hpp"
#include "python/src/bind.hpp"

namespace fsdp::python {

namespace {

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1e3));
}

void broadcast(const World& world, const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    world.transport().broadcast(tensor, 0, {.name = "broadcast"})->wait();
  }
}

}  // namespace

void bind_world(py::module_& module) {
  py::class_<World>(module, "World")
      .def_property_readonly("rank", &World::rank)
      .def_property_readonly("size", &World::size)
      .def_property_readonly("local_rank", &World::local_rank)
      .def_property_readonly("local_size", &World::local_size)
      .def_property_readonly("device", [](const World& world) { return world.device().str(); })
      .def_property_readonly("transport",
                             [](const World& world) { return world.transport().traits().name; })
      .def("barrier", &World::barrier, Unlocked())
      .def("recover", &World::recover, Unlocked())
      .def("publish_failure", &World::publish_failure, py::arg("text"), Unlocked());
  module.def(
      "init",
      [](std::string transport, std::string device, double setup_timeout, double timeout) {
        return init({.transport = std::move(transport),
                     .device = std::move(device),
                     .setup_timeout = milliseconds(setup_timeout),
                     .timeout = milliseconds(timeout)});
      },
      py::arg("transport"), py::arg("device"), py::arg("setup_timeout"), py::arg("timeout"),
      Unlocked());
  module.def("transport_words", &comm::transport_words);
  module.def("broadcast", &broadcast, py::arg("world"), py::arg("tensors"), Unlocked());
  module.def(
      "mean_over_ranks",
      [](const World& world, double value, double weight) {
        return mean_over_ranks(world, value, weight).get();
      },
      py::arg("world"), py::arg("value"), py::arg("weight"), Unlocked());
  module.def("count_over_ranks", &count_over_ranks, py::arg("world"), py::arg("count"), Unlocked());
  py::class_<StepAgreement>(module, "StepAgreement")
      .def_readonly("go_on", &StepAgreement::go_on)
      .def_readonly("weight", &StepAgreement::weight)
      .def_readonly("active", &StepAgreement::active);
  module.def(
      "agree_on_step",
      [](const World& world, bool has_batch, bool fill) {
        return agree_on_step(world, has_batch, fill ? Uneven::kFill : Uneven::kStop);
      },
      py::arg("world"), py::arg("has_batch"), py::arg("fill"), Unlocked());

  py::class_<DeviceMesh>(module, "DeviceMesh")
      .def(py::init([](const World& world, const std::vector<std::pair<std::string, int>>& axes) {
             std::vector<MeshAxis> named;
             for (const auto& [name, size] : axes) {
               named.push_back({.name = name, .size = size});
             }
             return DeviceMesh(world, std::move(named));
           }),
           py::arg("world"), py::arg("axes"), Unlocked())
      .def("size", &DeviceMesh::size, py::arg("axis"))
      .def("index", &DeviceMesh::index, py::arg("axis"))
      .def("along", &DeviceMesh::along, py::arg("axis"))
      .def_property_readonly("axes",
                             [](const DeviceMesh& mesh) {
                               std::vector<std::pair<std::string, int>> axes;
                               for (const MeshAxis& axis : mesh.axes()) {
                                 axes.emplace_back(axis.name, axis.size);
                               }
                               return axes;
                             })
      .def("__repr__",
           [](const DeviceMesh& mesh) { return "DeviceMesh(" + mesh.describe() + ")"; });
}

}  // namespace fsdp::python
