// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/safetensors_writer.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <filesystem>
#include <optional>
#include <utility>

#include "fsdp/base/error.hpp"
#include "fsdp/comm/communicator.hpp"
#include "fsdp/format/safetensors.hpp"

namespace fsdp::checkpoint {

namespace {

std::string dtype_name(at::ScalarType dtype, const std::string& tensor) {
  switch (dtype) {
    case at::kFloat: return "F32";
    case at::kDouble: return "F64";
    case at::kHalf: return "F16";
    case at::kBFloat16: return "BF16";
    case at::kLong: return "I64";
    case at::kInt: return "I32";
    case at::kShort: return "I16";
    case at::kChar: return "I8";
    case at::kByte: return "U8";
    case at::kBool: return "BOOL";
    default:
      fail(ErrorCode::kUnsupported, "[save_safetensors] \"", tensor, "\" is ", c10::toString(dtype),
           ", which safetensors files do not know");
  }
}

/// An open file that knows its path.
class File {
 public:
  File(std::string path, int flags) : path_(std::move(path)) {
    descriptor_ = ::open(path_.c_str(), flags | O_CLOEXEC, 0644);
    check(descriptor_ >= 0, "open");
  }
  ~File() {
    if (descriptor_ >= 0) {
      ::close(descriptor_);
    }
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  void resize(std::int64_t bytes) { check(::ftruncate(descriptor_, bytes) == 0, "resize"); }

  void write(const void* data, std::int64_t bytes, std::int64_t offset) {
    const char* next = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t written = ::pwrite(descriptor_, next, static_cast<std::size_t>(bytes), offset);
      if (written < 0 && errno == EINTR) {
        continue;
      }
      check(written > 0, "write");
      next += written;
      offset += written;
      bytes -= written;
    }
  }

  void sync() { check(::fsync(descriptor_) == 0, "sync"); }

 private:
  void check(bool is_fine, const char* what) const {
    FSDP_CHECK(is_fine, ErrorCode::kIo, "[save_safetensors] cannot ", what, " \"", path_,
               "\": ", std::strerror(errno));
  }

  std::string path_;
  int descriptor_ = -1;
};

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

/// Runs a phase on every rank; if it fails anywhere, every rank throws the first failing rank's
/// error. @collective all ranks
template <class Phase>
void together(const World& world, const std::string& name, Phase&& phase) {
  constexpr std::int64_t kTextBytes = 512;
  at::Tensor own = at::zeros({kTextBytes}, at::kByte);
  char* text = static_cast<char*>(own.data_ptr());
  try {
    phase();
  } catch (const std::exception& error) {
    const auto* known = dynamic_cast<const Error*>(&error);
    const std::string what = known != nullptr ? known->text() : error.what();
    std::strncpy(text, what.c_str(), kTextBytes - 1);
  }
  comm::Communicator& communicator = world.communicator();
  at::Tensor all = at::empty({kTextBytes * world.size()}, at::kByte);
  communicator.all_gather(all, own, {.name = name})->wait();
  for (int rank = 0; rank < world.size(); ++rank) {
    const char* reported = static_cast<const char*>(all.data_ptr()) + kTextBytes * rank;
    FSDP_CHECK(*reported == '\0', ErrorCode::kIo, "rank ", rank, ": ", reported);
  }
}

}  // namespace

void save_safetensors(const Sharded& sharded, const std::string& path,
                      const std::map<std::string, std::string>& metadata) {
  c10::NoGradGuard no_grad;
  const World world = sharded.world();
  const std::vector<NamedShard> parameters = sharded.named_parameters();
  const std::vector<NamedBuffer> buffers = sharded.named_buffers();
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
      File file(partial, O_WRONLY | O_CREAT | O_TRUNC);
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
    attempt([&] { file.emplace(partial, O_WRONLY); });
    const auto write = [&](const void* data, std::int64_t bytes, std::int64_t offset) {
      attempt([&] { file->write(data, bytes, offset); });
    };
    bool has_gathered = false;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const NamedShard& parameter = parameters[i];
      const auto itemsize = static_cast<std::int64_t>(parameter.shard.element_size());
      if (parameter.parameter.is_contiguous()) {
        write(parameter.shard.const_data_ptr(), parameter.shard.numel() * itemsize,
              layout.offsets[i] + parameter.begin * itemsize);
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
