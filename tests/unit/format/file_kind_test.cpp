// SPDX-License-Identifier: Apache-2.0
#include "format/file_kind.hpp"

#include <gmock/gmock.h>

namespace fsdp::format::detail {
namespace {

using namespace std::string_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string name_of(std::string_view path, std::string_view head = "Some words.") {
  const FileKind* kind = kind_of_file(path, head);
  return kind == nullptr ? "" : std::string(kind->name);
}

TEST(FileKindTest, NamesSayWhatAFileIs) {
  for (const auto& [path, name] : std::initializer_list<std::pair<const char*, const char*>>{
           {"d/a.parquet", "a Parquet file"},
           {"a.GZ", "compressed by gzip"},
           {"notes.txt.zst", "compressed by Zstandard"},
           {"a.PNG", "a PNG image"},
           {"a.npy", "a NumPy array"},
           {"a.csv", "a table with commas"},
           {"a.tsv", "a table with tabulators"},
           {"a.htm", "HTML"},
           {"a.xml", "XML"},
           {"a.pdf", "a PDF document"},
           {"a.docx", "a document of an office program"},
           {"model.safetensors", "weights in safetensors"},
           {"a.txt", ""},
           {"README", ""},
           {"png", ""},
           {"a.png/notes", ""},
           {".png", "a PNG image"}}) {
    EXPECT_EQ(name_of(path), name) << path;
  }
}

TEST(FileKindTest, FirstBytesSayMoreThanTheName) {
  for (const auto& [head, name] : std::initializer_list<std::pair<std::string, const char*>>{
           {"PAR1", "a Parquet file"},
           {"\x1f\x8b\x08\x00"s, "compressed by gzip"},
           {"\x28\xb5\x2f\xfd", "compressed by Zstandard"},
           {"BZh91AY&SY", "compressed by bzip2"},
           {"\xfd"s + "7zXZ\0"s, "compressed by xz"},
           {"PK\x03\x04", "a ZIP archive"},
           {"\x89PNG\r\n\x1a\n", "a PNG image"},
           {"\xff\xd8\xff\xe0", "a JPEG image"},
           {"GIF89a", "a GIF image"},
           {"RIFF1234WEBP", "a WebP image"},
           {"%PDF-1.7", "a PDF document"},
           {"\x93NUMPY\x01", "a NumPy array"},
           {"\x80\x02\0\0\0\0\0\0{\"__metadata__\""s, "weights in safetensors"},
           {"GGUF\x03\0\0\0"s, "weights in GGUF"},
           {"SQLite format 3\0"s, "an SQLite database"},
           {"ARROW1\0\0"s, "an Arrow file"},
           {"\x7f"
            "ELF",
            "a program"},
           {"\xff\xfe"
            "A\0"s,
            "UTF-16 text"},
           {"\xff\xfe\0\0A\0\0\0"s, "UTF-32 text"},
           {std::string(257, 'a') + "ustar\0"s, "a tar archive"},
           {"\xef\xbb\xbf\n <!DOCTYPE HTML>", "HTML"},
           {"<?xml version='1.0'?>", "XML"}}) {
    EXPECT_EQ(name_of("a.txt", head), name) << head;
  }
  EXPECT_EQ(name_of("a.docx", "PK\x03\x04"), "a document of an office program");
  EXPECT_EQ(name_of("a.npz", "PK\x03\x04"), "a NumPy archive");
  EXPECT_EQ(name_of("a.csv", "\x1f\x8b\x08"), "compressed by gzip");
}

TEST(FileKindTest, WordsAreNoMagicNumbers) {
  for (const char* text : {"GGUF is a format", "PDF", "BZh", "RIFF and others", "PK", "BMW", "{",
                           "[1]", "Ogg", "<p>", "II. Of Kings"}) {
    EXPECT_EQ(name_of("a.txt", text), "") << text;
  }
}

TEST(FileKindTest, PathsAreQuotedForAShell) {
  EXPECT_EQ(way_for("gzip -dc < {in} > {out}", "it's.gz"),
            R"(gzip -dc < 'it'\''s.gz' > 'it'\''s.gz.txt')");
}

std::string json_name(std::string_view path, std::string_view head) {
  const auto kind = kind_of_json(path, head);
  return kind ? kind->name : "";
}

TEST(JsonKindTest, RecordsAreKnownByTheirFields) {
  EXPECT_EQ(json_name("a.txt", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n"),
            "JSON lines of the field text");
  EXPECT_EQ(json_name("a", R"([{"instruction":"a","input":"","output":"b"},{)"),
            "a JSON array of Alpaca's fields");
  EXPECT_EQ(json_name("a", R"(  [ {"id":1, "conversations":[{"from":"human","value":"a}"}]}])"),
            "a JSON array of ShareGPT's fields");
  EXPECT_EQ(json_name("a", R"({"messages":[{"role":"user","content":"\"}"}]})"),
            "JSON lines of chat messages");
  EXPECT_EQ(json_name("a", R"({"prompt":"a","completion":"b"})"),
            "JSON lines of prompts and completions");
  EXPECT_EQ(json_name("a", "{\n \"model\": 1\n}\n"), "JSON");
  EXPECT_EQ(json_name("a", R"([{"text": "longer than the head)"), "a JSON array");
  EXPECT_EQ(json_name("a", "\xef\xbb\xbf{\"text\":\"a\"}"), "JSON lines of the field text");
}

TEST(JsonKindTest, NamesSayItWhereTheContentDoesNot) {
  EXPECT_EQ(json_name("a.jsonl", "words"), "JSON lines");
  EXPECT_EQ(json_name("a.json", R"(["a", "b"])"), "a JSON array");
  EXPECT_EQ(json_name("a.ipynb", ""), "JSON");
}

TEST(JsonKindTest, TextThatHoldsBracesIsText) {
  for (const char* text :
       {"{{Infobox}} of a wiki", "[1] A footnote", "{ int i; }", "{\"a\": 1} is an object of JSON.",
        "{\"a\" and so on", "[\"Hello,\" he said.]", "", "{\"a\": b}", "{}"}) {
    EXPECT_EQ(json_name("a.txt", text), "") << text;
  }
}

}  // namespace
}  // namespace fsdp::format::detail
