// SPDX-License-Identifier: Apache-2.0
#include "shm/segment.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "fsdp/base/error.hpp"
#include "shm/process.hpp"
#include "support/error_of.hpp"

namespace fsdp::shm {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string path_of(const Segment& segment) {
  return "/proc/" + std::to_string(segment.address().process) + "/fd/" +
         std::to_string(segment.address().descriptor);
}

TEST(Segment, IsZeroAndSeenByWhoeverOpensIt) {
  const Identity job = make_identity();
  const auto made = Segment::create(job, 10000);
  const auto opened = Segment::open(job, made->address());
  EXPECT_EQ(opened->bytes(), 10000U);
  EXPECT_NE(opened->data(), made->data());
  EXPECT_TRUE(std::all_of(opened->data(), opened->data() + 10000,
                          [](std::byte value) { return value == std::byte{0}; }));
  made->data()[9999] = std::byte{7};
  EXPECT_EQ(opened->data()[9999], std::byte{7});
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(made->data()) % 4096, 0U);
}

TEST(Segment, Fault161_IsForThisUserAlone) {
  const auto made = Segment::create(make_identity(), 100);
  struct stat status{};
  ASSERT_EQ(::stat(path_of(*made).c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
}

TEST(Segment, OfNoBytesCanBeOpened) {
  const Identity job = make_identity();
  const auto made = Segment::create(job, 0);
  EXPECT_EQ(Segment::open(job, made->address())->bytes(), 0U);
}

TEST(Segment, OfAnotherJobIsRefused) {
  const auto made = Segment::create(make_identity(), 100);
  EXPECT_THAT(test::error_of([&] { Segment::open(make_identity(), made->address()); }),
              HasSubstr("is not shared memory of this job"));
}

TEST(Segment, OtherFilesAreRefused) {
  const int file = ::open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  const Address address{.process = ::getpid(), .descriptor = file};
  EXPECT_NE(test::error_of([&] { Segment::open(make_identity(), address); }), "no error");
  ::close(file);
}

TEST(Segment, WhatIsGoneCannotBeOpened) {
  const Identity job = make_identity();
  auto made = Segment::create(job, 100);
  const Address address = made->address();
  made.reset();
  EXPECT_THAT(test::error_of([&] { Segment::open(job, address); }),
              AllOf(HasSubstr("cannot open"), HasSubstr("transport gloo")));
}

TEST(Segment, NobodyCanCutItOffSoThatAccessesFail) {
  const auto made = Segment::create(make_identity(), 100000);
  const int file = ::open(path_of(*made).c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(file, 0);
  EXPECT_NE(::ftruncate(file, 0), 0);
  EXPECT_NE(::ftruncate(file, 1 << 20), 0);
  ::close(file);
}

TEST(Segment, AllItsPagesAreReserved) {
  const auto made = Segment::create(make_identity(), 1 << 20);
  struct stat status{};
  ASSERT_EQ(::stat(path_of(*made).c_str(), &status), 0);
  EXPECT_GE(status.st_blocks * 512, 1 << 20);
  made->free_pages();
  ASSERT_EQ(::stat(path_of(*made).c_str(), &status), 0);
  EXPECT_LE(status.st_blocks * 512, 64 * 1024);
}

TEST(ProcessWatch, NeedsNoDescriptorToTellALivingProcess) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = limit.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &none);
  const ProcessWatch without_handle(child);
  ::setrlimit(RLIMIT_NOFILE, &limit);
  const ProcessWatch with_handle(child);
  EXPECT_FALSE(without_handle.has_ended());
  EXPECT_FALSE(with_handle.has_ended());
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(without_handle.has_ended());
  EXPECT_TRUE(with_handle.has_ended());
}

TEST(Segment, MoreThanTheSystemGivesIsAnErrorWithTheSize) {
  EXPECT_THAT(
      test::error_of([] { Segment::create(make_identity(), std::size_t{1} << 60); }),
      AllOf(HasSubstr("shared memory of 1152921504606851072 bytes"), HasSubstr("bytes left")));
}

TEST(Segment, ALimitOnFileSizesIsAnErrorAndNoSignal) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 1 << 20;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string error =
      test::error_of([] { Segment::create(make_identity(), std::size_t{2} << 20); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_THAT(error, AllOf(HasSubstr("2101248 bytes"), HasSubstr("1048576 bytes")));
}

TEST(Segment, EndsWithAProcessThatIsKilled) {
  const Identity job = make_identity();
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto made = Segment::create(job, 4096);
    const Address address = made->address();
    (void)!::write(pipe[1], &address, sizeof(address));
    ::pause();
  }
  Address address;
  ASSERT_EQ(::read(pipe[0], &address, sizeof(address)), static_cast<ssize_t>(sizeof(address)));
  auto opened = Segment::open(job, address);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  opened->data()[4095] = std::byte{1};  // still there for those who have it
  EXPECT_THAT(test::error_of([&] { Segment::open(job, address); }), HasSubstr("cannot open"));
  ::close(pipe[0]);
  ::close(pipe[1]);
}

}  // namespace
}  // namespace fsdp::shm
