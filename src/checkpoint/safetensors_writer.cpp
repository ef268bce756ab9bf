// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/safetensors_writer.hpp"

#include <c10/core/GradMode.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <filesystem>
#include <optional>
#include <utility>

#include "archive/file.hpp"
#include "checkpoint/items.hpp"
#include "checkpoint/together.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/format/safetensors.hpp"

namespace fsdp::checkpoint {

using archive::detail::File;
using archive::detail::OpenMode;
using detail::dtype_name;
using detail::together;

namespace {

/// Removes a file that a save did not get to rename: on a full disk it would stand in the way of
/// the next save.
class Leftover {
 public:
  explicit Leftover(std::string path) : path_(std::move(path)) {}
  ~Leftover() {
    if (!path_.empty()) {
      ::unlink(path_.c_str());  // gone already when the save succeeded
    }
  }
  Leftover(const Leftover&) = delete;
  Leftover& operator=(const Leftover&) = delete;

 private:
  std::string path_;
};

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

}  // namespace

void save_safetensors(const Sharded& sharded, const std::string& path,
                      const std::map<std::string, std::string>& metadata,
                      const StoredNameOf& name_of) {
  c10::NoGradGuard no_grad;
  const World world = sharded.world();
  const std::vector<NamedShard> parameters = renamed(sharded.named_parameters(), name_of);
  const std::vector<NamedBuffer> buffers = renamed(sharded.named_buffers(), name_of);
  std::vector<format::TensorEntry> entries;
  for (const NamedShard& parameter : parameters) {
    entries.push_back({parameter.name, dtype_name(parameter.shard.scalar_type(), parameter.name),
                       parameter.sizes});
  }
  for (const auto& [name, buffer] : buffers) {
    entries.push_back({name, dtype_name(buffer.scalar_type(), name), buffer.sizes().vec()});
  }
  const format::SafetensorsLayout layout = format::plan_safetensors(entries, metadata);

  const std::string partial = path + ".partial";
  const Leftover leftover(world.rank() == 0 ? partial : "");
  together(world, "save_safetensors: create", [&] {
    if (world.rank() == 0) {
      const std::filesystem::path parent = std::filesystem::path(path).parent_path();
      if (!parent.empty()) {
        std::filesystem::create_directories(parent);
      }
      File file(partial, OpenMode::kCreate);
      file.resize(layout.file_bytes);
      file.write(layout.header.data(), static_cast<std::int64_t>(layout.header.size()), 0);
    }
  });
  together(world, "save_safetensors: write", [&] {
    // A rank that cannot write goes on gathering with the others: all meet again at the end.
    std::exception_ptr failure;
    const auto attempt = [&failure](auto&& action) {
      try {
        if (failure == nullptr) {
          action();
        }
      } catch (const Error&) {
        failure = std::current_exception();
      }
    };
    std::optional<File> file;
    attempt([&] { file.emplace(partial, OpenMode::kWrite); });
    const auto write = [&](const void* data, std::int64_t bytes, std::int64_t offset) {
      attempt([&] { file->write(data, bytes, offset); });
    };
    bool has_gathered = false;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const NamedShard& parameter = parameters[i];
      const auto itemsize = static_cast<std::int64_t>(parameter.shard.element_size());
      if (parameter.parameter.is_contiguous()) {
        const at::Tensor own =
            parameter.shard.narrow(0, parameter.answered_begin, parameter.answered_numel);
        write(own.const_data_ptr(), own.numel() * itemsize,
              layout.offsets[i] + (parameter.begin + parameter.answered_begin) * itemsize);
      } else {
        // A shard of a transposed or channels-last weight is no range of the logical tensor: such a
        // weight is gathered, alone, and written by one rank.
        const at::Tensor whole = parameter.parameter.contiguous();
        has_gathered = true;
        if (world.rank() == 0) {
          write(whole.const_data_ptr(), whole.numel() * itemsize, layout.offsets[i]);
        }
      }
    }
    if (has_gathered) {
      Sharded(sharded).reshard();
    }
    for (std::size_t i = 0; world.rank() == 0 && i < buffers.size(); ++i) {
      const at::Tensor whole = buffers[i].buffer.contiguous();
      write(whole.const_data_ptr(), static_cast<std::int64_t>(whole.nbytes()),
            layout.offsets[parameters.size() + i]);
    }
    attempt([&] { file->sync(); });
    if (failure != nullptr) {
      std::rethrow_exception(failure);
    }
  });
  together(world, "save_safetensors: rename", [&] {
    if (world.rank() == 0) {
      std::filesystem::rename(partial, path);
    }
  });
}

}  // namespace fsdp::checkpoint
