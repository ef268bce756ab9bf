# SPDX-License-Identifier: Apache-2.0
message(FATAL_ERROR "fsdp took the host's install.cmake for its own")
