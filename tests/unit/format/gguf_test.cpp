// SPDX-License-Identifier: Apache-2.0
#include "format/gguf.hpp"

#include <gmock/gmock.h>

#include <bit>
#include <cmath>
#include <sstream>

#include "fsdp/base/error.hpp"
#include "support/error_of.hpp"
#include "support/gguf_writer.hpp"

namespace fsdp::format {
namespace {

using test::error_of;
using test::GgufWriter;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

GgufHeader parse(const std::string& bytes) {
  std::istringstream stream(bytes);
  return parse_gguf_header("m.gguf", stream, std::ssize(bytes));
}

std::string refusal(const std::string& bytes, ErrorCode code = ErrorCode::kCorrupt) {
  try {
    parse(bytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.text();
    return error.text();
  }
  return "accepted";
}

GgufWriter small(std::uint32_t version = 3) {
  GgufWriter writer(version);
  writer.text("general.architecture", "llama");
  writer.integer("llama.block_count", 2);
  writer.real("llama.rope.freq_base", 1e5F);
  writer.texts("tokens", {"a", "", "\xc4\xa0"});
  writer.integers("types", {3, -1});
  writer.floats("norm", {3}, {1, 2, 3});
  writer.tensor("q8", {2, 32}, 8, std::string(68, '\1'));
  return writer;
}

/// Replaces the number at `position`.
template <class T>
std::string with(std::string bytes, std::size_t position, T value) {
  std::memcpy(bytes.data() + position, &value, sizeof value);
  return bytes;
}

/// A list of 10 million bytes: a number each in memory. The file is as long as it says.
TEST(GgufTest, Fault159_MetadataIsBounded) {
  GgufWriter writer;
  writer.text("general.architecture", "llama");
  writer.integers("list", {1});
  std::string bytes = writer.bytes();
  const std::size_t place = bytes.find("list") + 4;
  bytes = with(bytes, place + 4, std::uint32_t{0});           // bytes
  bytes = with(bytes, place + 8, std::uint64_t{10'000'000});  // so many
  std::istringstream many(bytes);
  EXPECT_THAT(error_of([&] { parse_gguf_header("m.gguf", many, 20'000'000); }),
              HasSubstr("'list' and its 10000000 entries the header has more than 8388608"));
  bytes = with(bytes, 24, std::uint64_t{100'000'000});  // the length of the first name
  std::istringstream large(bytes);
  EXPECT_THAT(error_of([&] { parse_gguf_header("m.gguf", large, 200'000'000); }),
              HasSubstr("a metadata's name has 100000000 bytes, more than the 67108864"));
}

TEST(GgufTest, ReadsMetadataAndTensors) {
  for (const std::uint32_t version : {2u, 3u}) {
    const std::string bytes = small(version).bytes();
    const GgufHeader header = parse(bytes);
    EXPECT_EQ(std::get<std::string>(header.metadata.at("general.architecture")), "llama");
    EXPECT_EQ(std::get<std::int64_t>(header.metadata.at("llama.block_count")), 2);
    EXPECT_EQ(std::get<double>(header.metadata.at("llama.rope.freq_base")), 1e5);
    EXPECT_THAT(std::get<std::vector<std::string>>(header.metadata.at("tokens")),
                ElementsAre("a", "", "\xc4\xa0"));
    EXPECT_THAT(std::get<std::vector<std::int64_t>>(header.metadata.at("types")),
                ElementsAre(3, -1));
    ASSERT_EQ(header.tensors.size(), 2u);
    EXPECT_THAT(header.tensors[1].shape, ElementsAre(2, 32));
    EXPECT_EQ(header.tensors[1].type, GgufType::kQ8_0);
    EXPECT_EQ(header.tensors[1].bytes, 68);
    float values[3];
    std::memcpy(values, bytes.data() + header.tensors[0].offset, sizeof values);
    EXPECT_THAT(values, ElementsAre(1, 2, 3));
  }
}

TEST(GgufTest, NoTruncatedFileIsAccepted) {
  const std::string bytes = small().bytes();
  // The last tensor ends before the padding.
  for (std::size_t size = 0; size < bytes.size() - 28; ++size) {
    EXPECT_THAT(refusal(bytes.substr(0, size)), ::testing::Not("accepted")) << size;
  }
}

TEST(GgufTest, NumbersThatNoFileHoldsAreNamed) {
  const std::string bytes = small().bytes();
  EXPECT_THAT(refusal("GGML" + bytes.substr(4)), HasSubstr("not a GGUF file"));
  EXPECT_THAT(refusal(with(bytes, 4, std::uint32_t{1}), ErrorCode::kUnsupported),
              HasSubstr("version 1"));
  EXPECT_THAT(refusal(with(bytes, 8, std::uint64_t{1} << 60)), HasSubstr("number of tensors"));
  EXPECT_THAT(refusal(with(bytes, 16, ~std::uint64_t{0})), HasSubstr("number of metadata"));
  EXPECT_THAT(refusal(with(bytes, 24, ~std::uint64_t{0} >> 1)), HasSubstr("metadata's name"));
  const std::size_t tokens = bytes.find("tokens");
  EXPECT_THAT(refusal(with(bytes, tokens + 14, std::uint64_t{1} << 40)), HasSubstr("'tokens'"));
  EXPECT_THAT(refusal(with(bytes, tokens + 6, std::uint32_t{13})), HasSubstr("the type 13"));
  EXPECT_THAT(refusal(with(bytes, tokens + 10, std::uint32_t{9}), ErrorCode::kUnsupported),
              HasSubstr("list of lists"));
}

TEST(GgufTest, TensorsThatCannotBeAreNamed) {
  const std::string bytes = small().bytes();
  const std::size_t q8 = bytes.find("q8");  // then dimensions, 2 sizes, type, offset
  EXPECT_THAT(refusal(with(bytes, q8 + 2, std::uint32_t{5})), HasSubstr("5 dimensions"));
  EXPECT_THAT(refusal(with(bytes, q8 + 6, std::uint64_t{33})), HasSubstr("whole blocks"));
  EXPECT_THAT(refusal(with(bytes, q8 + 14, std::uint64_t{1} << 62)), HasSubstr("'q8'"));
  EXPECT_THAT(refusal(with(bytes, q8 + 22, std::uint32_t{2}), ErrorCode::kUnsupported),
              HasSubstr("element type 2"));
  EXPECT_THAT(refusal(with(bytes, q8 + 26, std::uint64_t{1})), HasSubstr("no multiple of 32"));
  EXPECT_THAT(refusal(with(bytes, q8 + 26, std::uint64_t{0})),
              HasSubstr("inside of the one before"));
  EXPECT_THAT(refusal(with(bytes, q8 + 26, std::uint64_t{1} << 63), ErrorCode::kUnsupported),
              HasSubstr("int64"));
  EXPECT_THAT(refusal(with(bytes, q8 + 26, std::uint64_t{64})), HasSubstr("truncated"));
  GgufWriter twice = small();
  twice.floats("norm", {1}, {0});
  EXPECT_THAT(refusal(twice.bytes()), HasSubstr("'norm' is there twice"));
  GgufWriter alignment = small();
  alignment.integer("general.alignment", 24);
  EXPECT_THAT(refusal(alignment.bytes()), HasSubstr("no power of two"));
}

TEST(GgufTest, AFileThatIsNotThereIsNotFound) {
  try {
    read_gguf_header("/nowhere/m.gguf");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
  }
}

// Halves: 0x3800 is 0.5, 0xbc00 is -1, 0x0001 is 2^-24, 0x7c00 is infinity.
TEST(GgufTest, DecodesQ8Blocks) {
  std::string block("\x00\x38", 2);
  for (int i = 0; i < 32; ++i) {
    block.push_back(static_cast<char>(i == 0 ? -128 : i));
  }
  float values[32];
  decode_blocks(GgufType::kQ8_0, block.data(), 1, values);
  EXPECT_EQ(values[0], -64);
  EXPECT_EQ(values[1], 0.5F);
  EXPECT_EQ(values[31], 15.5F);
}

TEST(GgufTest, DecodesQ41Blocks) {
  std::string blocks;
  for (const char low : {'\x01', '\x0f'}) {
    blocks += std::string("\x00\x38\x00\xbc", 4);
    blocks += std::string(16, static_cast<char>(0x20 | low));
  }
  float values[64];
  decode_blocks(GgufType::kQ4_1, blocks.data(), 2, values);
  EXPECT_EQ(values[0], -0.5F) << "0.5 x 1 - 1, of the low half";
  EXPECT_EQ(values[15], -0.5F);
  EXPECT_EQ(values[16], 0) << "0.5 x 2 - 1, of the high half";
  EXPECT_EQ(values[32], 6.5F) << "0.5 x 15 - 1, of the second block";
}

TEST(GgufTest, DecodesHalvesAndBfloat16) {
  const std::uint16_t halves[] = {0x3c00, 0xc000, 0x0001, 0x7c00, 0x3555};
  float values[5];
  decode_blocks(GgufType::kF16, halves, 5, values);
  EXPECT_THAT(values, ElementsAre(1, -2, std::ldexp(1.0F, -24), INFINITY, 0.333251953125F));
  const std::uint16_t brains[] = {0x3f80, 0xc040};
  decode_blocks(GgufType::kBF16, brains, 2, values);
  EXPECT_EQ(values[0], 1);
  EXPECT_EQ(values[1], -3);
}

}  // namespace
}  // namespace fsdp::format
