// SPDX-License-Identifier: Apache-2.0
/// What must hold before main(). See NOTE [a question must not end the program].
#include <csignal>

// NOTE [a question must not end the program]
// SIGUSR1 asks a job what it is doing, and its default is to end the process. The launcher and the
// ranks install their handlers in main(), but LibTorch's initialisers run for a quarter of a second
// before that. The functions of .preinit_array run before those of all libraries.
namespace {

// Sanitizers are not ready by then.
__attribute__((no_sanitize("address", "undefined", "thread"))) void ignore_questions() {
  ::signal(SIGUSR1, SIG_IGN);
}

// Read by the dynamic linker.
// NOLINTNEXTLINE(readability-identifier-naming)
__attribute__((section(".preinit_array"), used)) void (*const kBeforeAll)() = ignore_questions;

}  // namespace
