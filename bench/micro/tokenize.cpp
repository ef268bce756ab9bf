// SPDX-License-Identifier: Apache-2.0
/// CPU seconds that a tokenizer takes to load and to encode a text, first with nothing known.
/// bench_tokenize TOKENIZER TEXT [ROUNDS]: one JSON line.
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <fstream>
#include <iterator>
#include <string>

#include "fsdp/tokens/tokenizer.hpp"

namespace {

template <class Work>
double seconds(Work&& work) {
  const std::clock_t begin = std::clock();
  work();
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

int run(const std::string& path, const std::string& text_path, int rounds) {
  std::ifstream file(text_path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  std::shared_ptr<const fsdp::tokens::Tokenizer> tokenizer;
  const double load = seconds([&] { tokenizer = fsdp::tokens::load(path); });
  std::size_t tokens = 0;
  std::string times;
  for (int round = 0; round < rounds; ++round) {
    const double time = seconds([&] { tokens = tokenizer->encode(text).size(); });
    times += (round == 0 ? "" : ", ") + std::to_string(time);
  }
  std::printf(
      "{\"phase\": \"done\", \"load_s\": %.4f, \"bytes\": %zu, \"tokens\": %zu, \"encode_s\": "
      "[%s]}\n",
      load, text.size(), tokens, times.c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "bench_tokenize TOKENIZER TEXT [ROUNDS]\n");
    return 2;
  }
  try {
    return run(argv[1], argv[2], argc > 3 ? std::atoi(argv[3]) : 5);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_tokenize: %s\n", error.what());
    return 1;
  }
}
