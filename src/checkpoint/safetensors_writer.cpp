// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/safetensors_writer.hpp"

#include <c10/core/GradMode.h>

#include <exception>
#include <filesystem>
#include <optional>
#include <utility>

#include "archive/file.hpp"
#include "base/unfinished.hpp"
#include "checkpoint/items.hpp"
#include "checkpoint/save_weights.hpp"
#include "checkpoint/together.hpp"
#include "comm/on_host.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/format/safetensors.hpp"

namespace fsdp::checkpoint {

using archive::detail::File;
using archive::detail::OpenMode;
using detail::dtype_name;
using detail::together;

namespace {

/// Those that have a name in the file, under that name.
template <class Named>
std::vector<Named> renamed(std::vector<Named> all, const StoredNameOf& name_of) {
  if (!name_of) {
    return all;
  }
  std::vector<Named> wanted;
  for (Named& one : all) {
    if (const std::optional<std::string> name = name_of(one.name)) {
      one.name = *name;
      wanted.push_back(std::move(one));
    }
  }
  return wanted;
}

/// The file to which one rank writes. A rank that cannot goes on gathering with the others: the
/// first error waits for end(), where all meet again.
class PatientFile {
 public:
  explicit PatientFile(const std::string& path) {
    attempt([&] { file_.emplace(path, OpenMode::kWrite); });
  }
  /// What `make` returns; what it throws counts as a failure to write.
  template <class Make>
  void write(const Make& make, std::int64_t offset) {
    attempt([&] {
      const at::Tensor held = comm::on_host(make());
      file_.value().write(held.const_data_ptr(), static_cast<std::int64_t>(held.nbytes()), offset);
    });
  }
  void end() {
    attempt([&] { file_.value().sync(); });
    if (failure_ != nullptr) {
      std::rethrow_exception(failure_);
    }
  }

 private:
  template <class Action>
  void attempt(const Action& action) {
    if (failure_ != nullptr) {
      return;
    }
    try {
      action();
    } catch (const Error&) {
      failure_ = std::current_exception();
    }
  }

  std::optional<File> file_;
  std::exception_ptr failure_;
};

/// The type that a parameter has in the file.
at::ScalarType stored_type(const NamedShard& parameter, std::optional<at::ScalarType> dtype) {
  const at::ScalarType own = parameter.shard.scalar_type();
  return dtype && at::isFloatingType(own) ? *dtype : own;
}

/// `values` in that type. @throws Error kInvalidArgument for one that it cannot hold
at::Tensor rounded(const at::Tensor& values, at::ScalarType dtype, const std::string& name) {
  if (values.scalar_type() == dtype) {
    return values;
  }
  at::Tensor stored = values.to(dtype);
  const auto lost = (stored.isfinite() != values.isfinite()).sum().item<std::int64_t>();
  FSDP_CHECK(lost == 0, ErrorCode::kInvalidArgument, "'", name, "': ", lost,
             " elements are beyond what ", dtype, " holds; save the weights in another type");
  return stored;
}

/// `offsets`: of each parameter in the file. @collective
void write_parameters(const Sharded& sharded, const std::vector<NamedShard>& parameters,
                      const std::vector<std::int64_t>& offsets, std::optional<at::ScalarType> dtype,
                      PatientFile& file) {
  bool has_gathered = false;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const NamedShard& parameter = parameters[i];
    const at::ScalarType type = stored_type(parameter, dtype);
    const auto itemsize = static_cast<std::int64_t>(c10::elementSize(type));
    if (parameter.parameter.is_contiguous()) {
      file.write(
          [&] {
            return rounded(
                parameter.shard.narrow(0, parameter.answered_begin, parameter.answered_numel), type,
                parameter.name);
          },
          offsets[i] + (parameter.begin + parameter.answered_begin) * itemsize);
    } else {
      // A shard of a transposed or channels-last weight is no range of the logical tensor: such a
      // weight is gathered, alone, and written by one rank.
      const at::Tensor whole = parameter.parameter.contiguous();
      has_gathered = true;
      if (sharded.world().rank() == 0) {
        file.write([&] { return rounded(whole, type, parameter.name); }, offsets[i]);
      }
    }
  }
  if (has_gathered) {
    Sharded(sharded).reshard();
  }
}

}  // namespace

void save_safetensors(const Sharded& sharded, const std::string& path,
                      const std::map<std::string, std::string>& metadata,
                      const StoredNameOf& name_of) {
  detail::save_weights(sharded, path, metadata, name_of, [](const auto& put) { put(); });
}

void detail::save_weights(const Sharded& sharded, const std::string& path,
                          const std::map<std::string, std::string>& metadata,
                          const StoredNameOf& name_of,
                          const std::function<void(const std::function<void()>&)>& publish,
                          std::optional<at::ScalarType> dtype) {
  c10::NoGradGuard no_grad;
  const World world = sharded.world();
  const std::vector<NamedShard> parameters = renamed(sharded.named_parameters(), name_of);
  const std::vector<NamedBuffer> buffers = renamed(sharded.named_buffers(), name_of);
  std::vector<format::TensorEntry> entries;
  for (const NamedShard& parameter : parameters) {
    entries.push_back({parameter.name, dtype_name(stored_type(parameter, dtype), parameter.name),
                       parameter.sizes});
  }
  for (const auto& [name, buffer] : buffers) {
    entries.push_back({name, dtype_name(buffer.scalar_type(), name), buffer.sizes().vec()});
  }
  const format::SafetensorsLayout layout = format::plan_safetensors(entries, metadata);

  std::optional<base::Unfinished> draft;  // rank 0's
  together(world, "save_safetensors: create", [&] {
    if (world.rank() == 0) {
      const std::filesystem::path parent = std::filesystem::path(path).parent_path();
      if (!parent.empty()) {
        std::filesystem::create_directories(parent);
      }
      draft.emplace(path, base::PathKind::kFile);
      File file(draft->path(), OpenMode::kWrite);
      file.resize(layout.file_bytes);
      file.write(layout.header.data(), static_cast<std::int64_t>(layout.header.size()), 0);
    }
  });
  const std::string partial =
      broadcast_text(world, draft ? draft->path() : "", "save_safetensors: draft");
  together(world, "save_safetensors: write", [&] {
    PatientFile file(partial);
    write_parameters(sharded, parameters, layout.offsets, dtype, file);
    for (std::size_t i = 0; world.rank() == 0 && i < buffers.size(); ++i) {
      file.write([&] { return buffers[i].buffer.contiguous(); },
                 layout.offsets[parameters.size() + i]);
    }
    file.end();
  });
  together(world, "save_safetensors: rename", [&] {
    if (world.rank() == 0) {
      publish([&] { draft->finish(); });
    }
  });
}

}  // namespace fsdp::checkpoint
