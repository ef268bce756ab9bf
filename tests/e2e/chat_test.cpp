// SPDX-License-Identifier: Apache-2.0
/// Conversations by published chat templates become the texts, ids and masks that transformers and
/// the rule of TRL, written out in Python, make of them. The templates come with what runs them
/// (cmake/jinja.cmake); transformers runs when the test runs.
#include <gmock/gmock.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "e2e/program.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/data/chat_template.hpp"
#include "fsdp/data/samples.hpp"
#include "fsdp/tokens/tokenizer.hpp"
#include "support/temporary_directory.hpp"

namespace fsdp::test {
namespace {

using nlohmann::ordered_json;

std::vector<std::string> lines_of(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    lines.push_back(line);
  }
  return lines;
}

class ChatTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!data::has_chat_templates()) {
      GTEST_SKIP() << data::why_no_chat_templates();
    }
    const std::string python = python_with("transformers, tokenizers, jinja2");
    if (python.empty()) {
      GTEST_SKIP() << "no Python with transformers: FSDP_TEST_PYTHON names one";
    }
    const CommandResult made =
        run_command({python, std::string(FSDP_SOURCE_DIR) + "/tests/e2e/chat_oracle.py",
                     FSDP_CHAT_TEMPLATES, directory_.path()},
                    {{"HF_HUB_OFFLINE", "1"}});
    ASSERT_EQ(made.code, 0) << made.err;
    names_ = lines_of(directory_.path("names"));
    ASSERT_GE(names_.size(), 8u);
  }

  test::TemporaryDirectory directory_;
  std::vector<std::string> names_;
};

TEST_F(ChatTest, PublishedTemplatesRenderAndTokenizeAsTransformersDoes) {
  int refused = 0, split = 0, compared = 0;
  for (const std::string& name : names_) {
    const std::string model = directory_.path(name);
    const auto chat = data::ChatTemplate::load(model);
    const auto tokenizer = tokens::load(model);
    const auto records = lines_of(model + "/data.jsonl"),
               results = lines_of(model + "/expected.jsonl");
    ASSERT_EQ(records.size(), results.size());
    for (std::size_t i = 0; i < records.size(); ++i) {
      SCOPED_TRACE(name + ", conversation " + std::to_string(i));
      const auto expected = ordered_json::parse(results[i]);
      const std::string input = directory_.write("one.jsonl", records[i] + "\n");
      const std::string out = directory_.path("samples");
      if (expected.contains("error")) {
        EXPECT_THROW(data::make_samples(*tokenizer, model, {input}, out), Error);
        ++refused;
        continue;
      }
      const std::string messages = ordered_json::parse(records[i])["messages"].dump();
      EXPECT_EQ(chat.render(messages, false), expected["rendered"].get<std::string>());
      EXPECT_EQ(chat.render(messages, true), expected["opened"].get<std::string>());
      data::make_samples(*tokenizer, model, {input}, out);
      const data::SampleFile file(out);
      const auto& samples = expected["samples"];
      ASSERT_EQ(file.documents(), std::ssize(samples));
      split += samples.size() > 1 ? 1 : 0;
      for (std::int64_t k = 0; k < file.documents(); ++k) {
        const auto& sample = samples[static_cast<std::size_t>(k)];
        std::vector<std::int64_t> ids(static_cast<std::size_t>(file.document(k).tokens));
        std::vector<unsigned char> learned(ids.size());
        file.read(k, 0, ids, learned);
        EXPECT_EQ(ids, sample["ids"].get<std::vector<std::int64_t>>());
        EXPECT_EQ(learned, sample["learned"].get<std::vector<unsigned char>>());
        ++compared;
      }
    }
  }
  std::printf("%d documents compared, %d conversations split, %d refused as there\n", compared,
              split, refused);
  EXPECT_GT(compared, 40);
  EXPECT_GT(split, 0) << "a template that leaves out older thoughts";
  EXPECT_GT(refused, 0) << "a template that wants roles to alternate";
}

TEST_F(ChatTest, AModelWithoutATemplateIsToldSo) {
  const std::string input =
      directory_.write("one.jsonl", R"({"messages":[{"role":"user","content":"x"},)"
                                    R"({"role":"assistant","content":"y"}]})");
  const std::string model = directory_.path(names_.front());
  directory_.write(names_.front() + "/tokenizer_config.json", R"({"eos_token":"</s>"})");
  try {
    data::make_samples(*tokens::load(model), model, {input}, directory_.path("samples"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), ::testing::HasSubstr("has no chat template"));
  }
}

}  // namespace
}  // namespace fsdp::test
