#include "megatron/checkpoint/local_checkpoints.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <sstream>
#include <system_error>
#include <utility>

#include "megatron/checkpoint/directory.h"
#include "megatron/checkpoint/load.h"
#include "megatron/checkpoint/manifest.h"
#include "megatron/checkpoint/save.h"
#include "megatron/comm/collectives.h"
#include "megatron/comm/texts.h"
#include "megatron/comm/working.h"
#include "megatron/core/crc32c.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/folder.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPlaceFile = ".place";
constexpr const char* kLayout = "local_layout";  // in args
constexpr int64_t kPieceBytes = int64_t{1} << 20;
constexpr int64_t kPiecesAhead = 2;  // sent before their receipt is known

void make_directories(const fs::path& directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) {
    throw IoError(
        fmt::format("{}: cannot be created: {}; give another "
                    "--non-persistent-local-ckpt-dir",
                    directory.string(), error.message()));
  }
}

// The random text in the directory; the first rank that comes writes it.
std::string place_of(const fs::path& directory, const comm::Group& world) {
  make_directories(directory);
  const fs::path path = directory / kPlaceFile;
  if (!fs::exists(path)) {
    std::random_device random;
    const fs::path own = path.string() + fmt::format("-{}", world.rank());
    write_text_atomically(own, fmt::format("{:08x}{:08x}", random(), random()));
    std::error_code error;  // another rank may have been faster
    fs::create_hard_link(own, path, error);
    fs::remove(own, error);
  }
  return read_text(path);
}

// The files of a folder as one sequence of bytes, sent in pieces.
class FolderSender {
 public:
  FolderSender(const fs::path& folder, int to, const FolderGroups& groups)
      : to_(to), groups_(groups) {
    std::string header;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      files_.push_back(std::make_unique<MappedFile>(entry.path()));
      header +=
          fmt::format("{} {}\n", files_.back()->bytes().size(), entry.path().filename().string());
    }
    const auto size = static_cast<int64_t>(header.size());
    comm::send({&size, {1}, DType::kInt64}, to_, groups_.pieces, Stream{});
    comm::send({header.data(), {size}, DType::kUInt8}, to_, groups_.pieces, Stream{});
  }
  // Sends the next piece; false after the last one.
  bool send_piece() {
    while (file_ < files_.size() && at_ == size_of_file()) {
      ++file_;
      at_ = 0;
    }
    if (file_ == files_.size()) {
      for (; num_ahead_ > 0; --num_ahead_) await_receipt();
      return false;
    }
    const int64_t count = std::min(kPieceBytes, size_of_file() - at_);
    const std::byte* const data = files_[file_]->bytes().data() + at_;
    comm::send({data, {count}, DType::kUInt8}, to_, groups_.pieces, Stream{});
    at_ += count;
    if (++num_ahead_ > kPiecesAhead) {
      await_receipt();
      --num_ahead_;
    }
    return true;
  }

 private:
  int64_t size_of_file() const { return static_cast<int64_t>(files_[file_]->bytes().size()); }
  void await_receipt() const {
    uint8_t receipt = 0;
    comm::recv({&receipt, {1}, DType::kUInt8}, to_, groups_.receipts, Stream{});
  }

  const int to_;
  const FolderGroups& groups_;
  std::vector<std::unique_ptr<MappedFile>> files_;
  size_t file_ = 0;
  int64_t at_ = 0;
  int64_t num_ahead_ = 0;
};

class FolderReceiver {
 public:
  FolderReceiver(const fs::path& place, int from, const FolderGroups& groups)
      : from_(from), groups_(groups), folder_(place) {
    int64_t size = 0;
    comm::recv({&size, {1}, DType::kInt64}, from_, groups_.pieces, Stream{});
    std::string header(static_cast<size_t>(size), ' ');
    comm::recv({header.data(), {size}, DType::kUInt8}, from_, groups_.pieces, Stream{});
    std::istringstream lines(header);
    File file;
    while (lines >> file.bytes >> file.name) files_.push_back(file);
  }
  // Receives the next piece; false after the last one.
  bool receive_piece() {
    for (; file_ < files_.size(); ++file_) {
      if (writer_ == nullptr) {
        writer_ = std::make_unique<FileWriter>(folder_.path() / files_[file_].name);
        left_ = files_[file_].bytes;
      }
      if (left_ > 0) break;
      writer_->commit();
      writer_.reset();
    }
    if (file_ == files_.size()) return false;
    const int64_t count = std::min(kPieceBytes, left_);
    piece_.resize(static_cast<size_t>(count));
    comm::recv({piece_.data(), {count}, DType::kUInt8}, from_, groups_.pieces, Stream{});
    const uint8_t receipt = 1;
    comm::send({&receipt, {1}, DType::kUInt8}, from_, groups_.receipts, Stream{});
    writer_->write(std::span<const std::byte>(piece_));
    left_ -= count;
    return true;
  }
  void commit() { folder_.commit(); }

 private:
  struct File {
    int64_t bytes = 0;
    std::string name;
  };
  const int from_;
  const FolderGroups& groups_;
  UnfinishedFolder folder_;
  std::vector<File> files_;
  size_t file_ = 0;
  std::unique_ptr<FileWriter> writer_;
  int64_t left_ = 0;
  std::vector<std::byte> piece_;
};

}  // namespace

std::vector<int> Replication::members(int rank) const {
  const int64_t block = jump * factor;
  std::vector<int> members;
  members.reserve(static_cast<size_t>(factor));
  for (int64_t i = 0; i < factor; ++i) {
    members.push_back(static_cast<int>(rank / block * block + rank % jump + i * jump));
  }
  return members;
}

FolderGroups make_folder_groups(const comm::Group& world) {
  std::vector<int> all(static_cast<size_t>(world.size()));
  std::iota(all.begin(), all.end(), 0);
  return {.pieces = world.subgroup("local checkpoints", all),
          .receipts = world.subgroup("receipts", all)};
}

void exchange_folders(const FolderExchange& exchange, const FolderGroups& groups) {
  std::optional<FolderSender> sender;
  std::optional<FolderReceiver> receiver;
  if (!exchange.folder.empty()) sender.emplace(exchange.folder, exchange.to_rank, groups);
  if (!exchange.place.empty()) receiver.emplace(exchange.place, exchange.from_rank, groups);
  bool sends = sender.has_value();
  bool receives = receiver.has_value();
  while (sends || receives) {
    if (sends) sends = sender->send_piece();
    if (receives) receives = receiver->receive_piece();
  }
  if (receiver) receiver->commit();
}

CheckpointState parts_as_tensors(CheckpointState state) {
  const auto convert = [](std::vector<CheckpointTensor>& tensors) {
    for (CheckpointTensor& tensor : tensors) {
      if (tensor.data.shape() == tensor.whole) continue;
      tensor = whole_tensor(fmt::format("{}#{}", tensor.name, fmt::join(tensor.offset, ",")),
                            tensor.data);
    }
  };
  convert(state.model);
  for (auto& [section, tensors] : state.optimizer) convert(tensors);
  return state;
}

LocalCheckpoints::LocalCheckpoints(fs::path directory, const Replication& replication,
                                   const comm::Group& world)
    : directory_(std::move(directory)),
      replication_(replication),
      world_(world),
      folder_groups_(make_folder_groups(world)),
      places_(comm::gathered_texts(place_of(directory_, world), world)) {
  make_directories(directory_of(world_.rank()));
  // A killed run may have left some.
  remove_leftovers(directory_of(world_.rank()));
  for (const int member : replication_.members(world_.rank())) {
    if (keeps(world_.rank(), member)) remove_leftovers(directory_of(member));
  }
}

fs::path LocalCheckpoints::directory_of(int rank) const {
  return directory_ / fmt::format("rank_{:05}-of-{:05}", rank, world_.size());
}

bool LocalCheckpoints::shares_directory(int rank, int other) const {
  return places_[static_cast<size_t>(rank)] == places_[static_cast<size_t>(other)];
}

bool LocalCheckpoints::keeps(int keeper, int owner) const {
  if (shares_directory(keeper, owner)) return false;
  for (const int member : replication_.members(owner)) {  // the first one of a directory
    if (shares_directory(member, keeper)) return member == keeper;
  }
  return false;
}

bool LocalCheckpoints::has_no_copies() const {
  for (int owner = 0; owner < world_.size(); ++owner) {
    const std::vector<int> members = replication_.members(owner);
    if (std::any_of(members.begin(), members.end(), [&](int m) { return keeps(m, owner); })) {
      return false;
    }
  }
  return true;
}

void LocalCheckpoints::remove_all_but(int rank, int64_t iteration) const {
  const fs::path directory = directory_of(rank);
  for (const int64_t found : iterations_in(directory)) {
    if (found != iteration) fs::remove_all(directory / iteration_directory_name(found));
  }
}

void LocalCheckpoints::save(const CheckpointState& state) {
  const comm::Working working(world_, fmt::format("saving iteration {} locally", state.iteration));
  CheckpointState parts = parts_as_tensors(state);
  parts.args[kLayout] = layout_of(parts);
  const int own = world_.rank();
  const std::vector<int> members = replication_.members(own);
  remove_all_but(own, saved_);
  for (const int member : members) {
    if (keeps(own, member)) remove_all_but(member, saved_);
  }
  save_checkpoint(directory_of(own), contents_of(parts));
  const fs::path name = iteration_directory_name(state.iteration);
  const auto position =
      static_cast<size_t>(std::find(members.begin(), members.end(), own) - members.begin());
  for (size_t step = 1; step < members.size(); ++step) {
    const int to = members[(position + step) % members.size()];
    const int from = members[(position + members.size() - step) % members.size()];
    FolderExchange exchange{.folder = {}, .to_rank = to, .place = {}, .from_rank = from};
    if (keeps(to, own)) exchange.folder = directory_of(own) / name;
    if (keeps(own, from)) {
      make_directories(directory_of(from));
      exchange.place = directory_of(from) / name;
    }
    exchange_folders(exchange, folder_groups_);
  }
  saved_ = state.iteration;
}

std::string LocalCheckpoints::layout_of(const CheckpointState& parts) const {
  std::string text;
  const auto add = [&](const std::string& kind, const std::vector<CheckpointTensor>& tensors) {
    for (const CheckpointTensor& tensor : tensors) {
      text += fmt::format("{} {} {}\n", kind, tensor.name, tensor.whole.str());
    }
  };
  add("model", parts.model);
  for (const auto& [kind, tensors] : parts.optimizer) add(kind, tensors);
  const auto sum_of = [](const std::string& bytes) {
    return fmt::format("{:08x}", crc32c(std::as_bytes(std::span(bytes))));
  };
  return sum_of(fmt::format("{}", fmt::join(comm::gathered_texts(sum_of(text), world_), " ")));
}

// The lines "<rank> <iteration>" of this rank's directory.
std::string LocalCheckpoints::listing(const ArgMap& wanted) const {
  const auto has = [&](const ArgMap& args, const char* name) {
    const auto is = args.find(name);
    const auto should = wanted.find(name);
    return (is == args.end() ? ArgValue{} : is->second) ==
           (should == wanted.end() ? ArgValue{} : should->second);
  };
  std::string text;
  for (int rank = 0; rank < world_.size(); ++rank) {
    const fs::path directory = directory_of(rank);
    if (!fs::exists(directory)) continue;
    for (const int64_t iteration : iterations_in(directory)) {
      const fs::path args = directory / iteration_directory_name(iteration) / kArgsFile;
      const ArgMap saved = parse_args(read_text(args), args);
      if (has(saved, "save") && has(saved, kLayout)) {
        text += fmt::format("{} {}\n", rank, iteration);
      }
    }
  }
  return text;
}

std::optional<int64_t> LocalCheckpoints::newest(const CheckpointState& state) const {
  ArgMap wanted = state.args;
  wanted[kLayout] = layout_of(parts_as_tensors(state));
  const auto first = static_cast<size_t>(
      std::find(places_.begin(), places_.end(), places_[static_cast<size_t>(world_.rank())]) -
      places_.begin());
  const bool is_first = first == static_cast<size_t>(world_.rank());  // of its directory
  listings_ = comm::gathered_texts(is_first ? listing(wanted) : std::string(), world_);
  std::map<int64_t, std::set<int>> ranks;  // by iteration
  for (const std::string& text : listings_) {
    std::istringstream lines(text);
    int rank = 0;
    int64_t iteration = 0;
    while (lines >> rank >> iteration) ranks[iteration].insert(rank);
  }
  for (auto found = ranks.rbegin(); found != ranks.rend(); ++found) {
    if (static_cast<int>(found->second.size()) == world_.size()) return found->first;
  }
  return std::nullopt;
}

CheckpointContents LocalCheckpoints::open(int64_t iteration) {
  const fs::path name = iteration_directory_name(iteration);
  const auto has = [&](int holder, int rank) {  // the listing is the first one's of a directory
    const std::string line = fmt::format("\n{} {}\n", rank, iteration);
    return ("\n" + listings_[static_cast<size_t>(holder)]).find(line) != std::string::npos;
  };
  for (int rank = 0; rank < world_.size(); ++rank) {
    int holder = -1;
    for (int other = 0; other < world_.size(); ++other) {
      if (!has(other, rank)) continue;
      if (holder < 0 || shares_directory(other, rank)) holder = other;
    }
    if (shares_directory(holder, rank)) continue;
    FolderExchange exchange{.folder = {}, .to_rank = rank, .place = {}, .from_rank = holder};
    if (holder == world_.rank()) exchange.folder = directory_of(rank) / name;
    if (rank == world_.rank()) exchange.place = directory_of(rank) / name;
    exchange_folders(exchange, folder_groups_);
  }
  saved_ = iteration;
  return open_checkpoint(directory_of(world_.rank()) / name);
}

std::optional<int64_t> LocalCheckpoints::newest_of_any_run() const {
  std::optional<int64_t> newest;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory_)) {
    if (!entry.path().filename().string().starts_with("rank_")) continue;
    for (const int64_t iteration : iterations_in(entry.path())) {
      newest = std::max(newest.value_or(0), iteration);
    }
  }
  return newest;
}

void LocalCheckpoints::clear() {
  comm::barrier(world_);  // all have looked
  for (const int64_t iteration : iterations_in(directory_of(world_.rank()))) {
    fs::remove_all(directory_of(world_.rank()) / iteration_directory_name(iteration));
  }
}

}  // namespace megatron
