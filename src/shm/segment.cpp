// SPDX-License-Identifier: Apache-2.0
#include "shm/segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

#include "fsdp/base/error.hpp"
#include "shm/available_memory.hpp"

namespace fsdp::shm {
namespace {

constexpr std::size_t kHeaderBytes = 4096;
constexpr std::uint64_t kMagic = 0x31304d4853505346;  // "FSPSHM01"

struct Header {
  std::uint64_t magic = kMagic;
  Identity identity;
  std::uint64_t bytes = 0;
};

/// Closes what was opened when set-up fails halfway.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (value_ >= 0) {
      ::close(value_);
    }
  }
  int get() const { return value_; }
  int release() { return std::exchange(value_, -1); }

 private:
  int value_;
};

/// Reserving beyond the limit on file sizes would end the process with SIGXFSZ.
void check_file_size_limit(std::size_t bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0) {
    FSDP_CHECK(limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur, ErrorCode::kIo,
               "shared memory of ", bytes, " bytes exceeds the limit on file sizes of ",
               limit.rlim_cur, " bytes: raise it (ulimit -f), or use transport gloo");
  }
}

/// The system would end processes to find pages for a reservation that is too large.
void check_available(std::size_t bytes) {
  const AvailableMemory available = available_memory();
  FSDP_CHECK(bytes <= available.bytes, ErrorCode::kIo, "cannot reserve shared memory of ", bytes,
             " bytes: ", available.limited_by, " has ", available.bytes,
             " bytes left for the model's shared weights and gradients: use a smaller model, fewer "
             "ranks or more memory");
}

/// In pieces: a signal makes kernels before 6.14 take back what one call has reserved so far, and a
/// profiler's come faster than a large reservation is made.
void reserve(int descriptor, std::size_t bytes) {
  constexpr off_t kPiece = off_t{1} << 20;
  const auto size = static_cast<off_t>(bytes);
  int error = ::ftruncate(descriptor, size) == 0 ? 0 : errno;
  for (off_t done = 0; error == 0 && done < size;) {
    const off_t piece = std::min(kPiece, size - done);
    if (::fallocate(descriptor, 0, done, piece) == 0) {
      done += piece;
    } else if (errno != EINTR) {
      error = errno;
    }
  }
  FSDP_CHECK(error == 0, ErrorCode::kIo, "cannot reserve shared memory of ", bytes,
             " bytes: ", std::strerror(error));
}

}  // namespace

Identity make_identity() {
  std::random_device device;
  const auto word = [&] { return (std::uint64_t{device()} << 32) | device(); };
  return {word(), word()};
}

std::shared_ptr<Segment> Segment::create(const Identity& identity, std::size_t bytes) {
  const std::size_t all = kHeaderBytes + std::max<std::size_t>(bytes, 1);
  check_file_size_limit(all);
  check_available(all);
  Descriptor file(::memfd_create("fsdp", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  FSDP_CHECK(file.get() >= 0, ErrorCode::kIo, "cannot make shared memory: ", std::strerror(errno));
  ::fchmod(file.get(), 0600);  // a memfd is open to all whom /proc lets at it
  reserve(file.get(), all);
  ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  std::shared_ptr<Segment> segment(new Segment(file.release(), /*is_owner=*/true, bytes));
  const Header header{.identity = identity, .bytes = bytes};
  std::memcpy(segment->mapping_, &header, sizeof(header));
  return segment;
}

std::shared_ptr<Segment> Segment::open(const Identity& identity, const Address& address) {
  const std::string path =
      "/proc/" + std::to_string(address.process) + "/fd/" + std::to_string(address.descriptor);
  const Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  FSDP_CHECK(file.get() >= 0, ErrorCode::kPeerFailed, "cannot open the shared memory of process ",
             address.process, " (", path, "): ", std::strerror(errno),
             ". Has it ended, or do the ranks run as different users or in different containers? "
             "Then use transport gloo");
  Header header;
  const bool is_segment =
      ::pread(file.get(), &header, sizeof(header), 0) == static_cast<ssize_t>(sizeof(header)) &&
      header.magic == kMagic && header.identity == identity;
  struct stat status{};
  FSDP_CHECK(is_segment && ::fstat(file.get(), &status) == 0 &&
                 static_cast<std::uint64_t>(status.st_size) >= kHeaderBytes + header.bytes,
             ErrorCode::kMismatch, path,
             " is not shared memory of this job: is a process of an old job still running?");
  return std::shared_ptr<Segment>(
      new Segment(::dup(file.get()), /*is_owner=*/false, static_cast<std::size_t>(header.bytes)));
}

Segment::Segment(int descriptor, bool is_owner, std::size_t bytes)
    : descriptor_(descriptor), bytes_(bytes) {
  const std::size_t all = kHeaderBytes + std::max<std::size_t>(bytes, 1);
  // The owner's pages are there already; mapping them at once spares a fault a page later.
  void* memory =
      ::mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor, 0);
  const int error = errno;
  if (!is_owner || memory == MAP_FAILED) {
    ::close(descriptor_);
    descriptor_ = -1;
  }
  FSDP_CHECK(memory != MAP_FAILED, ErrorCode::kIo, "cannot map shared memory of ", all,
             " bytes: ", std::strerror(error), " (is the address space limited, ulimit -v?)");
  mapping_ = static_cast<std::byte*>(memory);
  data_ = mapping_ + kHeaderBytes;
}

Segment::~Segment() {
  const std::size_t all = kHeaderBytes + std::max<std::size_t>(bytes_, 1);
  if (mapping_ != nullptr) {
    ::munmap(mapping_, all);
  }
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

void Segment::free_pages() noexcept {
  ::fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, kHeaderBytes,
              static_cast<off_t>(std::max<std::size_t>(bytes_, 1)));
}

Address Segment::address() const {
  return {.process = static_cast<std::int32_t>(::getpid()), .descriptor = descriptor_};
}

}  // namespace fsdp::shm
