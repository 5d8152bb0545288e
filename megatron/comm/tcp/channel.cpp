#include "megatron/comm/tcp/channel.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace megatron::comm::tcp {
namespace {

constexpr std::string_view kMagic = "megatron";
constexpr char kVersion = 3;
constexpr size_t kNonceBytes = 32;
constexpr size_t kHeadBytes = kMagic.size() + 8;
constexpr size_t kGreetingBytes = kHeadBytes + kNonceBytes;
constexpr size_t kProofBytes = sizeof(Secret::Digest);
constexpr size_t kSizeBytes = 4;
constexpr size_t kReadBytes = size_t{64} << 10;
constexpr size_t kMaxShown = 40;

std::string text_of(const Secret::Digest& digest) { return {digest.begin(), digest.end()}; }

std::string greeting_for(Purpose purpose) {
  std::string text(kMagic);
  text += kVersion;
  text += static_cast<char>(purpose);
  text.resize(kHeadBytes, '\0');
  return text + text_of(random_bytes());
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string result;
  for (const char letter : text.substr(0, kMaxShown)) {
    const bool is_plain = letter >= ' ' && letter <= '~' && letter != '\\';
    result += is_plain ? std::string(1, letter)
                       : fmt::format("\\x{:02x}", static_cast<unsigned char>(letter));
  }
  return text.size() > kMaxShown ? result + "..." : result;
}

Channel::Channel(Socket socket, End end, Purpose purpose, const Secret& secret)
    : socket_(std::move(socket)), end_(end), purpose_(purpose), secret_(secret) {
  if (end_ == End::kListener) return;
  greeting_ = greeting_for(purpose_);
  out_ = greeting_;
}

Secret::Digest Channel::proof(End end) const {
  return secret_.digest((end == End::kCaller ? "caller" : "listener") + greeting_ + answer_);
}

int16_t Channel::events() const {
  const int reading = record_ ? 0 : POLLIN;
  return static_cast<int16_t>(reading | (has_output() ? POLLOUT : 0));
}

void Channel::lose(const std::string& problem, bool is_stranger) {
  if (state_ == State::kGone) return;
  state_ = State::kGone;
  problem_ = problem;
  is_stranger_ = is_stranger;
  out_.clear();
  sent_ = 0;
}

void Channel::send(std::string_view record) {
  if (state_ == State::kGone) return;
  std::string& to = state_ == State::kProving ? waiting_ : out_;
  for (size_t i = 0; i < kSizeBytes; ++i) to += static_cast<char>(record.size() >> (8 * i) & 255u);
  to += record;
}

std::optional<std::string> Channel::next() { return std::exchange(record_, std::nullopt); }

void Channel::advance() {
  flush();
  while (state_ != State::kGone && !record_ && receive()) {
  }
  flush();
}

void Channel::flush() {
  while (state_ != State::kGone && has_output()) {
    const ssize_t count =
        ::send(socket_.get(), out_.data() + sent_, out_.size() - sent_, MSG_NOSIGNAL);
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    if (count < 0 && (errno == EPIPE || errno == ECONNRESET))
      return;  // it may have sent the reason
    if (count < 0) return lose(std::strerror(errno));
    sent_ += static_cast<size_t>(count);
  }
  if (!has_output()) {
    out_.clear();
    sent_ = 0;
  }
}

size_t Channel::piece_size() const {
  if (state_ == State::kOpen) return is_in_record_ ? record_size_ : kSizeBytes;
  if (end_ == End::kCaller) return kGreetingBytes + kProofBytes;
  return greeting_.empty() ? kGreetingBytes : kProofBytes;
}

bool Channel::receive() {
  const size_t wanted = piece_size() - in_.size();
  if (wanted > 0) {
    std::array<char, kReadBytes> buffer;
    const ssize_t count = ::recv(socket_.get(), buffer.data(), std::min(wanted, kReadBytes), 0);
    if (count < 0 && errno == EINTR) return true;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    if (count <= 0) {
      lose(count == 0 ? "it was closed" : std::strerror(errno));
      return false;
    }
    in_.append(buffer.data(), static_cast<size_t>(count));
  }
  const bool is_head = state_ == State::kProving && (end_ == End::kCaller || greeting_.empty());
  const size_t known = std::min(in_.size(), kMagic.size());
  if (is_head && in_.compare(0, known, kMagic.substr(0, known)) != 0) {
    lose(fmt::format("it is another program: it sent \"{}\"", escaped(in_)), true);
    return false;
  }
  if (in_.size() == piece_size()) take_piece();
  return state_ != State::kGone;
}

void Channel::take_piece() {
  if (state_ == State::kProving) {
    end_ == End::kCaller ? take_reply() : take_greeting();
  } else if (is_in_record_) {
    record_ = std::move(in_);
    is_in_record_ = false;
  } else {
    record_size_ = 0;
    for (size_t i = 0; i < kSizeBytes; ++i) {
      record_size_ |= size_t{static_cast<unsigned char>(in_[i])} << (8 * i);
    }
    is_in_record_ = true;
    if (record_size_ > kMaxRecord) {
      lose(fmt::format("it announces a record of {} bytes, above the limit of {}", record_size_,
                       kMaxRecord));
    }
  }
  in_.clear();
}

// For the listener: the caller's greeting, then its proof.
void Channel::take_greeting() {
  if (greeting_.empty()) {
    const char version = in_[kMagic.size()];
    if (version != kVersion || in_[kMagic.size() + 1] != static_cast<char>(purpose_)) {
      return lose("it is a megatron of another version, or of another job", true);
    }
    greeting_ = in_;
    answer_ = greeting_for(purpose_);
    out_ += answer_ + text_of(proof(End::kListener));
    return;
  }
  Secret::Digest theirs;
  std::copy(in_.begin(), in_.end(), theirs.begin());
  if (!is_equal(theirs, proof(End::kCaller))) {
    return lose("it does not know the secret of this job", true);
  }
  state_ = State::kOpen;
  out_ += std::exchange(waiting_, {});
}

// For the caller: the listener's greeting and proof.
void Channel::take_reply() {
  const char version = in_[kMagic.size()];
  if (version != kVersion || in_[kMagic.size() + 1] != static_cast<char>(purpose_)) {
    return lose("it is a megatron of another version, or of another job", true);
  }
  answer_ = in_.substr(0, kGreetingBytes);
  Secret::Digest theirs;
  std::copy(in_.begin() + kGreetingBytes, in_.end(), theirs.begin());
  if (!is_equal(theirs, proof(End::kListener))) {
    return lose("it belongs to another job, or has another secret", true);
  }
  state_ = State::kOpen;
  out_ += text_of(proof(End::kCaller)) + std::exchange(waiting_, {});
}

}  // namespace megatron::comm::tcp
