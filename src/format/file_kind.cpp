// SPDX-License-Identifier: Apache-2.0
#include "format/file_kind.hpp"

#include <algorithm>
#include <cctype>

namespace fsdp::format::detail {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view kFromParquet =
    R"(python3 -c "import sys, pyarrow.parquet as p; [print(t, end='\n\n') for t in )"
    R"(p.read_table(sys.argv[1])['text'].to_pylist()]" {in} > {out})";
constexpr std::string_view kFromMarkup =
    R"(python3 -c "import html, re, sys; print(html.unescape(re.sub()"
    R"~(r'(?s)<(script|style)\b.*?</\1>|<[^>]*>', '', open(sys.argv[1], encoding='utf-8').read())))" )~"
    "{in} > {out}";
constexpr std::string_view kFromCommas =
    R"(python3 -c "import csv, sys; [print('\n'.join(row), end='\n\n') for row in )"
    R"(csv.reader(open(sys.argv[1], encoding='utf-8', newline='')) if row]" {in} > {out})";
constexpr std::string_view kFromTabs =
    R"(python3 -c "import csv, sys; [print('\n'.join(row), end='\n\n') for row in )"
    R"(csv.reader(open(sys.argv[1], encoding='utf-8', newline=''), delimiter='\t') if row]" )"
    R"({in} > {out})";

// UTF-32's mark begins with UTF-16's, and Office's files are ZIP archives: the longer goes first.
constexpr FileKind kKinds[] = {
    {"UTF-32 text", "", "\xff\xfe\0\0"sv, "iconv -f UTF-32 -t UTF-8 {in} > {out}"},
    {"UTF-32 text", "", "\0\0\xfe\xff"sv, "iconv -f UTF-32 -t UTF-8 {in} > {out}"},
    {"UTF-16 text", "", "\xff\xfe", "iconv -f UTF-16 -t UTF-8 {in} > {out}"},
    {"UTF-16 text", "", "\xfe\xff", "iconv -f UTF-16 -t UTF-8 {in} > {out}"},

    {"a Parquet file", ".parquet .pq ", "PAR1", kFromParquet},
    {"an Arrow file", ".arrow .feather ", "ARROW1\0\0"sv, ""},
    {"an HDF5 file", ".h5 .hdf5 ", "\x89HDF\r\n\x1a\n", ""},
    {"an SQLite database", ".sqlite .sqlite3 .db ", "SQLite format 3\0"sv, ""},
    {"a NumPy array", ".npy ", "\x93NUMPY", ""},
    {"a NumPy archive", ".npz ", "", ""},

    {"weights in safetensors", ".safetensors ", "\0\0\0{\""sv, "", 5},
    {"weights in GGUF", ".gguf ", "GGUF?\0\0\0"sv, ""},
    {"weights pickled by PyTorch", ".pt .pth .ckpt ", "\x80\x02\x8a\x0al\xfc\x9c\x46\xf9", ""},
    {"a Python pickle", ".pkl .pickle ", "", ""},

    {"compressed by gzip", ".gz .tgz ", "\x1f\x8b\x08", "gzip -dc < {in} > {out}"},
    {"compressed by Zstandard", ".zst .zstd ", "\x28\xb5\x2f\xfd", "zstd -dc < {in} > {out}"},
    {"compressed by bzip2", ".bz2 ", "BZh?1AY&SY", "bzip2 -dc < {in} > {out}"},
    {"compressed by xz", ".xz .txz .lzma ", "\xfd\x37zXZ\0"sv, "xz -dc < {in} > {out}"},
    {"compressed by LZ4", ".lz4 ", "\x04\x22\x4d\x18", "lz4 -dc < {in} > {out}"},
    {"a document of an office program", ".docx .xlsx .pptx .odt .doc .xls .ppt .rtf .epub ",
     "\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "pandoc -t plain {in} -o {out}"},
    {"a ZIP archive", ".zip .jar .whl ", "PK\x03\x04", "unzip -p {in} > {out}"},
    {"a 7z archive", ".7z ", "7z\xbc\xaf\x27\x1c", ""},
    {"a tar archive", ".tar ", "ustar\0"sv, "tar -xOf {in} > {out}", 257},
    {"a tar archive", "", "ustar  \0"sv, "tar -xOf {in} > {out}", 257},

    {"a PNG image", ".png ", "\x89PNG\r\n\x1a\n", ""},
    {"a JPEG image", ".jpg .jpeg ", "\xff\xd8\xff", ""},
    {"a GIF image", ".gif ", "GIF8?a", ""},
    {"a WebP image", ".webp ", "RIFF????WEBP", ""},
    {"an image", ".bmp .tif .tiff .ico .heic .avif ", "II*\0"sv, ""},
    {"a PDF document", ".pdf ", "%PDF-", "pdftotext {in} {out}"},
    {"audio", ".wav .mp3 .ogg .flac .m4a ", "RIFF????WAVE", ""},
    {"audio", "", "OggS\0"sv, ""},
    {"video", ".mp4 .mkv .avi .mov .webm ", "\0\0\0?ftyp"sv, ""},
    {"a program", ".exe .dll .so .o .a .pyc .class ",
     "\x7f"
     "ELF",
     ""},

    {"a table with commas", ".csv ", "", kFromCommas},
    {"a table with tabulators", ".tsv ", "", kFromTabs},
    {"HTML", ".html .htm .xhtml ", "", kFromMarkup},
    {"XML", ".xml .svg ", "<?xml ", kFromMarkup},
};

char lower(char character) {
  return static_cast<char>(std::tolower(static_cast<unsigned char>(character)));
}

bool begins_like(std::string_view bytes, std::string_view head) {
  return bytes.size() >= head.size() &&
         std::equal(head.begin(), head.end(), bytes.begin(),
                    [](char wanted, char found) { return wanted == '?' || wanted == found; });
}

std::string ending_of(std::string_view path) {
  const std::string_view name = path.substr(path.find_last_of('/') + 1);
  const auto dot = name.find_last_of('.');
  std::string ending(dot == std::string_view::npos ? "" : name.substr(dot));
  std::transform(ending.begin(), ending.end(), ending.begin(), lower);
  return ending;
}

/// A page may begin with a mark, spaces and any case.
bool is_html(std::string_view head) {
  std::string begin(head.substr(0, 64));
  std::transform(begin.begin(), begin.end(), begin.begin(), lower);
  const auto first = begin.find_first_not_of("\xef\xbb\xbf \t\r\n");
  const std::string_view rest = std::string_view(begin).substr(std::min(first, begin.size()));
  return rest.starts_with("<!doctype html") || rest.starts_with("<html");
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (auto at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

}  // namespace

const FileKind* kind_by_head(std::string_view head) {
  const auto found = std::find_if(std::begin(kKinds), std::end(kKinds), [&](const FileKind& kind) {
    return !kind.head.empty() && head.size() > kind.head_at &&
           begins_like(head.substr(kind.head_at), kind.head);
  });
  return found == std::end(kKinds) ? nullptr : found;
}

const FileKind* kind_of_file(std::string_view path, std::string_view head) {
  const std::string ending = is_html(head) ? ".html" : ending_of(path);
  const auto by_name = std::find_if(std::begin(kKinds), std::end(kKinds), [&](const auto& kind) {
    return !ending.empty() && kind.endings.find(ending + " ") != std::string_view::npos;
  });
  const FileKind* const named = by_name == std::end(kKinds) ? nullptr : by_name;
  const FileKind* const by_head = kind_by_head(head);
  // A .docx is a ZIP archive, an .npz too: the name says more.
  const bool name_says_more =
      by_head != nullptr && named != nullptr && by_head->head == "PK\x03\x04";
  return by_head == nullptr || name_says_more ? named : by_head;
}

std::string shell_quoted(std::string_view path) {
  std::string text(path);
  replace_all(text, "'", R"('\'')");
  return "'" + text + "'";
}

std::string way_for(std::string_view way, std::string_view path) {
  std::string text(way);
  replace_all(text, "{out}", shell_quoted(std::string(path) + ".txt"));
  replace_all(text, "{in}", shell_quoted(path));
  return text;
}

}  // namespace fsdp::format::detail
