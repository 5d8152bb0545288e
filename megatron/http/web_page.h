#pragma once

#include <httplib.h>

#include <string>
#include <string_view>

namespace megatron {

// A page of this program. The browser runs only its own <script> and <style>, whose hashes the page
// is sent with (Content-Security-Policy), loads nothing from other machines, and shows it in no
// other page.
class WebPage {
 public:
  explicit WebPage(std::string_view html);
  void set(httplib::Response& response) const;

 private:
  std::string html_;
  std::string policy_;
};

}  // namespace megatron
