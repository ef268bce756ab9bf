// SPDX-License-Identifier: Apache-2.0
#include "base/sha256.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace fsdp::base {
namespace {

constexpr std::array<std::uint32_t, 64> kConstants{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

constexpr std::size_t kBlock = 64;

}  // namespace

void Sha256::add(std::string_view bytes) {
  bytes_ += bytes.size();
  while (!bytes.empty()) {
    const std::size_t taken = std::min(bytes.size(), kBlock - filled_);
    std::memcpy(block_.data() + filled_, bytes.data(), taken);
    filled_ += taken;
    bytes.remove_prefix(taken);
    if (filled_ == kBlock) {
      take_block(block_.data());
      filled_ = 0;
    }
  }
}

Digest Sha256::finish() {
  const std::uint64_t bits = bytes_ * 8;
  constexpr std::size_t kLength = sizeof(bits);
  add(std::string_view("\x80", 1));
  while (filled_ != kBlock - kLength) {
    add(std::string_view("\0", 1));
  }
  std::array<char, kLength> length{};
  for (std::size_t i = 0; i < kLength; ++i) {
    length[i] = static_cast<char>(bits >> (8 * (kLength - 1 - i)));
  }
  add({length.data(), length.size()});
  Digest digest{};
  for (std::size_t i = 0; i < digest.size(); ++i) {
    digest[i] = static_cast<char>(state_[i / 4] >> (8 * (3 - i % 4)));
  }
  return digest;
}

void Sha256::take_block(const unsigned char* block) {
  std::array<std::uint32_t, 64> w{};
  for (std::size_t i = 0; i < 16; ++i) {
    w[i] = std::uint32_t{block[4 * i]} << 24 | std::uint32_t{block[4 * i + 1]} << 16 |
           std::uint32_t{block[4 * i + 2]} << 8 | std::uint32_t{block[4 * i + 3]};
  }
  for (std::size_t i = 16; i < w.size(); ++i) {
    const std::uint32_t low = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const std::uint32_t high = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + low + w[i - 7] + high;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (std::size_t i = 0; i < w.size(); ++i) {
    const std::uint32_t sum_e = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const std::uint32_t first = h + sum_e + ((e & f) ^ (~e & g)) + kConstants[i] + w[i];
    const std::uint32_t sum_a = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const std::uint32_t second = sum_a + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + first;
    d = c;
    c = b;
    b = a;
    a = first + second;
  }
  const std::array<std::uint32_t, 8> next{a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < state_.size(); ++i) {
    state_[i] += next[i];
  }
}

Digest sha256(std::string_view bytes) {
  Sha256 hash;
  hash.add(bytes);
  return hash.finish();
}

Digest hmac_sha256(std::string_view secret, std::string_view message) {
  std::array<char, kBlock> key{};
  if (secret.size() > kBlock) {
    const Digest shorter = sha256(secret);
    std::ranges::copy(shorter, key.begin());
  } else {
    std::ranges::copy(secret, key.begin());
  }
  const auto keyed = [&key](char pad, std::string_view rest) {
    std::array<char, kBlock> block = key;
    for (char& byte : block) {
      byte = static_cast<char>(byte ^ pad);
    }
    Sha256 hash;
    hash.add({block.data(), block.size()});
    hash.add(rest);
    return hash.finish();
  };
  const Digest inner = keyed(0x36, message);
  return keyed(0x5c, view_of(inner));
}

bool are_equal(std::string_view left, std::string_view right) {
  if (left.size() != right.size()) {
    return false;
  }
  unsigned difference = 0;
  for (std::size_t i = 0; i < left.size(); ++i) {
    difference |= static_cast<unsigned char>(left[i] ^ right[i]);
  }
  return difference == 0;
}

}  // namespace fsdp::base
