// SPDX-License-Identifier: Apache-2.0
/// How Gloo's I/O threads share processors with the threads that compute.
#pragma once

namespace fsdp::comm::detail {

/// Lets this process's I/O threads of Gloo give way to threads that compute; see NOTE [Gloo's
/// threads give way]. Once they run: after a backend was made. Local; failures are ignored, since
/// nothing but speed depends on it.
void lower_priority_of_gloo_threads();

}  // namespace fsdp::comm::detail
