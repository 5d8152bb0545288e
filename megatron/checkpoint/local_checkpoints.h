#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "megatron/checkpoint/contents.h"
#include "megatron/checkpoint/state.h"
#include "megatron/comm/group.h"
#include "megatron/core/arg_map.h"

// Checkpoints that the ranks of a run keep on their own hosts, in memory (/dev/shm) or on a local
// disk, to go on from when ranks or hosts are lost (--non-persistent-ckpt-type local). Each rank
// saves all tensors that it would load, so only the same layout of ranks can load them. With
// replication, other hosts have copies.
//
//   <directory>/.place                           random: tells directories of different hosts apart
//   <directory>/rank_00003-of-00008/iter_0000020/  of the native format; a whole tensor for each
//                                                part of one
namespace megatron {

// Ranks n, n + jump, n + 2 jump, .. keep each other's checkpoints, `factor` ranks each (Megatron
// Core's --replication-jump and --replication-factor).
struct Replication {
  int64_t jump = 1;
  int64_t factor = 1;  // 1: no copies

  // Members of the rank's set, in rising order. REQUIRES: jump * factor divides the world.
  std::vector<int> members(int rank) const;
};

// Ranks that send each other folders. Receipts have a group of their own: a pair of ranks may send
// in both directions at once.
struct FolderGroups {
  comm::Group pieces;
  comm::Group receipts;
};
FolderGroups make_folder_groups(const comm::Group& world);

// Sends the files of a folder to a rank, and receives those of another rank at `place`, where they
// appear complete; either may be absent. Every send has its receive.
struct FolderExchange {
  std::filesystem::path folder;  // empty: nothing to send
  int to_rank = 0;
  std::filesystem::path place;  // empty: nothing to receive
  int from_rank = 0;
};
// Throws IoError.
void exchange_folders(const FolderExchange& exchange, const FolderGroups& groups);

class LocalCheckpoints {
 public:
  // The directory of this rank's host; several ranks, or hosts, may have the same one. Makes it.
  // Every rank calls it, here and below. Throws IoError, ConfigError.
  LocalCheckpoints(std::filesystem::path directory, const Replication& replication,
                   const comm::Group& world);

  // Saves this rank's tensors (parts of tensors that are its own) and exchanges copies with the
  // other members of its set, except with those that have the same directory. Keeps the iteration
  // before until this one is complete. Counters, scalars and args are saved as they are.
  void save(const CheckpointState& state);

  // The newest iteration of which each rank's checkpoint is in some directory; none if there is
  // none. Only those of the same --save count, with the tensors of `state`, or their parts, on
  // every rank.
  std::optional<int64_t> newest(const CheckpointState& state) const;
  // Opens this rank's checkpoint of newest(). Fetches it if it is in a directory of other ranks.
  CheckpointContents open(int64_t iteration);
  // The newest iteration of any run in this rank's directory.
  std::optional<int64_t> newest_of_any_run() const;
  // Deletes the checkpoints of all runs in this rank's directory.
  void clear();

  const std::filesystem::path& directory() const { return directory_; }
  // True if no copy is on another host.
  bool has_no_copies() const;

 private:
  std::filesystem::path directory_of(int rank) const;
  // A checksum of the names and shapes of all ranks' tensors.
  std::string layout_of(const CheckpointState& parts) const;
  std::string listing(const ArgMap& wanted) const;
  // True if `keeper` has to store a copy of `owner`'s checkpoints.
  bool keeps(int keeper, int owner) const;
  bool shares_directory(int rank, int other) const;
  void remove_all_but(int rank, int64_t iteration) const;

  const std::filesystem::path directory_;
  const Replication replication_;
  const comm::Group world_;
  const FolderGroups folder_groups_;
  std::vector<std::string> places_;            // of all ranks: equal texts, equal directories
  mutable std::vector<std::string> listings_;  // of all ranks, by newest()
  int64_t saved_ = -1;                         // iteration
};

// The state with each part of a tensor as a whole tensor, named by its offset: "weight#2,0".
CheckpointState parts_as_tensors(CheckpointState state);

}  // namespace megatron
