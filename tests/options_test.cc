// SPDX-License-Identifier: Apache-2.0
// Proves that option text is parsed or refused with a sentence that names key, limit and value; and
// the rule's functions.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "rule.h"

using Options = std::unique_ptr<struct pglog_options>;

static struct slice S(const std::string &s) {
  return slice_make(s.data(), s.size());
}

static Options
Defaults() {
  Options o(new struct pglog_options);
  pglog_options_init(o.get());
  return o;
}

static Options Parsed(const std::string &text) {
  Options o = Defaults();
  struct pglog_error e = {0, ""};
  EXPECT_EQ(pglog_options_parse(o.get(), text.c_str(), &e), 0) << text << ": " << e.text;
  EXPECT_EQ(pglog_options_check(o.get(), &e), 0) << text << ": " << e.text;
  return o;
}

// The text is refused, and the sentence has each of `words`.
static void Refused(const std::string &text, const std::vector<std::string> &words) {
  Options o = Defaults();
  struct pglog_error e = {0, ""};
  ASSERT_EQ(pglog_options_parse(o.get(), text.c_str(), &e), PGLOG_EINVAL) << text;
  EXPECT_EQ(e.code, PGLOG_EINVAL) << text;
  for (const std::string &w : words)
    EXPECT_NE(std::string(e.text).find(w), std::string::npos) << text << ": " << e.text;
  EXPECT_EQ(pglog_options_parse(o.get(), text.c_str(), NULL), PGLOG_EINVAL) << text;
}

static std::string Prefix(const struct pglog_options *o) {
  return std::string((const char *)o->rule.prefix, o->rule.prefix_len);
}

TEST(Options, Defaults) {
  Options o = Parsed("pglog://");
  EXPECT_STREQ(o->rule.cf, "default");
  EXPECT_EQ(Prefix(o.get()), "pglog/");
  EXPECT_EQ(o->rule.pgid_kind, PGLOG_PGID_UNTIL);
  EXPECT_EQ(o->rule.pgid_arg, '/');
  EXPECT_FALSE(o->rule_given);
  EXPECT_STREQ(o->arena, "");
  EXPECT_STREQ(o->wal_dir, "");
  EXPECT_STREQ(o->base, "");
  EXPECT_EQ(o->memory, 64u << 20);
  EXPECT_EQ(o->arena_max, 4ull << 30);
  EXPECT_EQ(o->arena_step, 16u << 20);
  EXPECT_EQ(o->queue_depth, 32u);
  EXPECT_FALSE(o->format);
  EXPECT_FALSE(o->no_guard);
  EXPECT_EQ(o->io, nullptr);
  for (const char *same : {"pglog://?", "pglog://?&", "id=pglog", " id = pglog ; ", "{id=pglog;}"})
    EXPECT_EQ(memcmp(Parsed(same).get(), o.get(), sizeof *o), 0) << same;
}

TEST(Options, EveryKeyInUri) {
  Options o = Parsed(
      "pglog://?prefix=l%2Fx&cf=P&pgid=fixed:8&arena=/dev/my%20disk%3d&wal%5fdir=/w&base=file://%26"
      "&memory=1G&arena_max=2t&arena_step=64K&queue_depth=1024&format=1&guard=0");
  EXPECT_EQ(Prefix(o.get()), "l/x");
  EXPECT_STREQ(o->rule.cf, "P");
  EXPECT_EQ(o->rule.pgid_kind, PGLOG_PGID_FIXED);
  EXPECT_EQ(o->rule.pgid_arg, 8);
  EXPECT_TRUE(o->rule_given);
  EXPECT_STREQ(o->arena, "/dev/my disk=");
  EXPECT_STREQ(o->wal_dir, "/w");
  EXPECT_STREQ(o->base, "file://&");
  EXPECT_EQ(o->memory, 1ull << 30);
  EXPECT_EQ(o->arena_max, 2ull << 40);
  EXPECT_EQ(o->arena_step, 65536u);
  EXPECT_EQ(o->queue_depth, 1024u);
  EXPECT_TRUE(o->format);
  EXPECT_TRUE(o->no_guard);
}

TEST(Options, StringFormAndBraces) {
  Options o =
      Parsed("id=pglog; prefix={a;b=} ;cf = P;pgid=until:|;arena={/x/{y};z};base=a=b;format=true;"
             "guard=false;;memory={2M};");
  EXPECT_EQ(Prefix(o.get()), "a;b=");
  EXPECT_STREQ(o->rule.cf, "P");
  EXPECT_EQ(o->rule.pgid_arg, '|');
  EXPECT_STREQ(o->arena, "/x/{y};z");
  EXPECT_STREQ(o->base, "a=b");
  EXPECT_TRUE(o->format);
  EXPECT_TRUE(o->no_guard);
  EXPECT_EQ(o->memory, 2u << 20);
  EXPECT_STREQ(Parsed("{{ id=pglog;cf={P} }}")->rule.cf, "P");
  EXPECT_STREQ(Parsed("id=pglog;arena={}")->arena, "");
}

TEST(Options, LaterTextGoesOverWhatIsThere) {
  Options o = Parsed("pglog://?memory=2M&queue_depth=4");
  struct pglog_error e;
  ASSERT_EQ(pglog_options_parse(o.get(), "id=pglog;queue_depth=5", &e), 0);
  EXPECT_EQ(o->memory, 2u << 20);
  EXPECT_EQ(o->queue_depth, 5u);
}

TEST(Options, PrefixAndPgidForms) {
  EXPECT_EQ(Prefix(Parsed("pglog://?prefix=0x00fFa5").get()), std::string("\0\xff\xa5", 3));
  EXPECT_EQ(Prefix(Parsed("pglog://?prefix=%00x").get()), std::string("\0x", 2));
  EXPECT_EQ(Prefix(Parsed("pglog://?prefix=&cf=P").get()), "");
  EXPECT_EQ(Prefix(Parsed("pglog://?prefix=a=b").get()), "a=b");
  EXPECT_EQ(Prefix(Parsed("pglog://?prefix=" + std::string(64, 'x')).get()), std::string(64, 'x'));
  EXPECT_EQ(Parsed("pglog://?prefix=0x" + std::string(128, 'a'))->rule.prefix_len, 64);
  EXPECT_EQ(Parsed("pglog://?pgid=fixed:1")->rule.pgid_arg, 1);
  EXPECT_EQ(Parsed("pglog://?pgid=fixed:255")->rule.pgid_arg, 255);
  EXPECT_EQ(Parsed("pglog://?pgid=until:0x00")->rule.pgid_arg, 0);
  EXPECT_EQ(Parsed("pglog://?pgid=until:0xfF")->rule.pgid_arg, 255);
  EXPECT_EQ(Parsed("pglog://?pgid=until:0")->rule.pgid_arg, '0');
  EXPECT_EQ(Parsed("pglog://?pgid=until::")->rule.pgid_arg, ':');
  EXPECT_EQ(Parsed("pglog://?pgid=until:%26")->rule.pgid_arg, '&');
}

TEST(Options, BoundsAreIn) {
  EXPECT_EQ(Parsed("pglog://?memory=1M")->memory, 1u << 20);
  EXPECT_EQ(Parsed("pglog://?memory=1T")->memory, 1ull << 40);
  EXPECT_EQ(Parsed("pglog://?arena_max=1M&arena_step=1024K")->arena_max, 1u << 20);
  EXPECT_EQ(Parsed("pglog://?arena_max=16T&arena_step=1G")->arena_max, 16ull << 40);
  EXPECT_EQ(Parsed("pglog://?memory=1048577")->memory, 1048577u);
  EXPECT_EQ(Parsed("pglog://?queue_depth=1")->queue_depth, 1u);
}

TEST(Options, RefusesMalformedText) {
  Refused("", {"pglog://", "id=pglog"});
  Refused("pglog", {"'pglog'"});
  Refused("pglog:/", {"pglog:/"});
  Refused("pglog:///x", {"/x"});
  Refused("pglog://x?cf=P", {"x?cf=P"});
  Refused("id=other;cf=P", {"id=other"});
  Refused("cf=P;id=pglog", {"cf=P"});
  Refused("pglog://?cf", {"'cf'", "KEY=VALUE"});
  Refused("id=pglog;cf;prefix=x", {"'cf'", "KEY=VALUE"});
  Refused("pglog://?=x", {"unknown option ''"});
  Refused("pglog://?cf=%4", {"%", "cf=%4"});
  Refused("pglog://?cf=%", {"cf=%"});
  Refused("pglog://?c%zf=x", {"c%zf=x"});
  Refused("id=pglog;cf={P", {"brace", "{P"});
  Refused("id=pglog;cf={P}Q;prefix=x", {"'Q'", "brace"});
  Refused("{id=pglog;cf=P", {"{id=pglog"});
}

TEST(Options, RefusesUnknownAndDuplicateKeys) {
  Refused("pglog://?colour=red", {"'colour'", "arena_step"});
  Refused("id=pglog;Cf=P", {"'Cf'"});
  Refused("id=pglog;id=pglog", {"'id'"});
  Refused("pglog://?io=1", {"'io'"});
  Refused("pglog://?cf=P&prefix=x&cf=P", {"cf=P", "twice"});
  Refused("id=pglog;guard=1;guard=0", {"guard=0", "twice"});
}

TEST(Options, RefusesMalformedValues) {
  for (const char *v : {"", "K", "12X", "1MB", "-1M", "+1M", " 1M", "0x10M", "1.5M", "1 M",
                        "18446744073709551616", "99999999999999999999", "16777216T"})
    Refused(std::string("pglog://?memory=") + v, {"memory=" + std::string(v), "not a size"});
  Refused("pglog://?queue_depth=1K", {"queue_depth=1K", "whole number"});
  Refused("pglog://?queue_depth=", {"queue_depth="});
  for (const char *v : {"", "2", "yes", "TRUE", "10"}) {
    Refused(std::string("pglog://?format=") + v, {"format=" + std::string(v), "0 or 1"});
    Refused(std::string("pglog://?guard=") + v, {"guard=" + std::string(v), "0 or 1"});
  }
  Refused("pglog://?cf=", {"cf=", "empty"});
  Refused("pglog://?cf=a%00b", {"cf=a\\x00b", "NUL"});
  Refused("pglog://?arena=a%00b", {"arena=a\\x00b", "NUL"});
  Refused("pglog://?cf=" + std::string(256, 'c'), {"256", "limit is 255"});
  Refused("pglog://?arena=" + std::string(4096, 'c'), {"4096", "limit is 4095"});
  Refused("pglog://?base=" + std::string(1024, 'c'), {"1024", "limit is 1023"});
  EXPECT_EQ(strlen(Parsed("pglog://?arena=" + std::string(4095, 'c'))->arena), 4095u);
}

TEST(Options, RefusesMalformedPrefixAndPgid) {
  Refused("pglog://?prefix=" + std::string(65, 'x'), {"prefix=x", "65", "limit is 64"});
  Refused("pglog://?prefix=0x" + std::string(130, '0'), {"65", "limit is 64"});
  Refused("pglog://?prefix=0x", {"prefix=0x", "even number"});
  Refused("pglog://?prefix=0x123", {"prefix=0x123", "even number"});
  Refused("pglog://?prefix=0x12g4", {"prefix=0x12g4", "hex digit"});
  Refused("pglog://?pgid=", {"pgid=", "fixed:N"});
  Refused("pglog://?pgid=8", {"pgid=8", "fixed:N"});
  for (const char *v : {"0", "256", "", "-1", "8x", "65544", "18446744073709551624"})
    Refused(std::string("pglog://?pgid=fixed:") + v, {"pgid=fixed:" + std::string(v), "1..255"});
  for (const char *v : {"", "ab", "0x1", "0x123", "0xg1", "0x1g"})
    Refused(std::string("pglog://?pgid=until:") + v, {"until:" + std::string(v), "one byte"});
}

TEST(Options, RefusesOutOfRange) {
  Refused("pglog://?memory=0", {"memory=0", "1M..1T"});
  Refused("pglog://?memory=1048575", {"memory=1048575", "1M..1T"});
  Refused("pglog://?memory=2T", {"memory=2T", "1M..1T"});
  Refused("pglog://?arena_max=512K", {"arena_max=512K", "1M..16T"});
  Refused("pglog://?arena_max=17T", {"arena_max=17T", "1M..16T"});
  Refused("pglog://?arena_step=32K", {"arena_step=32K", "64K..1G"});
  Refused("pglog://?arena_step=2G", {"arena_step=2G", "64K..1G"});
  Refused("pglog://?queue_depth=0", {"queue_depth=0", "1..1K"});
  Refused("pglog://?queue_depth=1025", {"queue_depth=1025", "1..1K"});
  Refused("pglog://?queue_depth=4294967297", {"queue_depth=4294967297"});
}

template <typename Change>
static void CheckRefuses(Change change, const std::vector<std::string> &words) {
  Options o = Defaults();
  change(o.get());
  struct pglog_error e = {0, ""};
  ASSERT_EQ(pglog_options_check(o.get(), &e), PGLOG_EINVAL) << words[0];
  for (const std::string &w : words)
    EXPECT_NE(std::string(e.text).find(w), std::string::npos) << w << ": " << e.text;
}

TEST(OptionsCheck, NumbersAndCombinations) {
  using O = struct pglog_options *;
  CheckRefuses([](O o) { o->memory = 0; }, {"memory=0"});
  CheckRefuses([](O o) { o->queue_depth = 4096; }, {"queue_depth=4K"});
  CheckRefuses([](O o) { o->arena_max = 1 << 20; }, {"arena_max=1M", "arena_step=16M"});
  CheckRefuses([](O o) { o->arena_max += 512; }, {"arena_max=4294967808", "4096"});
  CheckRefuses([](O o) { o->arena_step += 512; }, {"arena_step=16777728", "4096"});
  CheckRefuses([](O o) { memset(o->arena, 'x', sizeof o->arena); }, {"arena", "4095"});
  CheckRefuses([](O o) { strcpy(o->base, "pglog://?cf=P"); }, {"base=pglog://?cf=P"});
  CheckRefuses([](O o) { strcpy(o->base, "id=pglog;cf=P"); }, {"base=id=pglog"});
  struct pglog_io io = {};
  CheckRefuses([&](O o) { o->io = &io; }, {"io"});
}

TEST(OptionsCheck, Rule) {
  using O = struct pglog_options *;
  CheckRefuses([](O o) { o->rule.prefix_len = 0; }, {"empty prefix", "default", "cf=NAME"});
  CheckRefuses([](O o) { o->rule.prefix_len = 65; }, {"65", "64"});
  CheckRefuses([](O o) { o->rule.cf[0] = '\0'; }, {"empty"});
  CheckRefuses([](O o) { memset(o->rule.cf, 'x', sizeof o->rule.cf); }, {"255"});
  CheckRefuses([](O o) { strcpy(o->rule.cf, PGLOG_GUARD_CF); }, {PGLOG_GUARD_CF});
  CheckRefuses([](O o) { o->rule.pgid_kind = 3; }, {"kind 3"});
  CheckRefuses([](O o) { o->rule.pgid_arg = 256; }, {"256"});
  CheckRefuses([](O o) { o->rule.pgid_kind = PGLOG_PGID_FIXED, o->rule.pgid_arg = 0; },
               {"fixed:0"});
  Options o = Defaults();
  struct pglog_error e;
  ASSERT_EQ(pglog_options_parse(o.get(), "pglog://?prefix=", &e), 0);
  EXPECT_EQ(pglog_options_check(o.get(), &e), PGLOG_EINVAL);
  EXPECT_EQ(pglog_options_check(o.get(), NULL), PGLOG_EINVAL);
}

// Any change of valid text ends in success or PGLOG_EINVAL, and in nothing that ASan sees.
TEST(Options, RandomText) {
  const std::string seeds[] = {
      "pglog://?prefix=%41b&cf=P&pgid=until:/&memory=64M&queue_depth=8&format=1&guard=0",
      "id=pglog;prefix={0x4142};cf=P;pgid=fixed:8;arena={a;b};memory=1G;format=0"};
  for (unsigned seed = 1; seed <= 20000; seed++) {
    SCOPED_TRACE(seed);
    std::mt19937 rnd(seed);
    std::string text = seeds[rnd() % 2];
    for (unsigned i = 1 + rnd() % 4; i > 0 && !text.empty(); i--) {
      size_t at = rnd() % text.size();
      if (rnd() % 3 == 0)
        text.erase(at, 1 + rnd() % 8);
      else
        text[at] = rnd() % 2 ? "%&;={}?:xMT0/ "[rnd() % 14] : (char)(1 + rnd() % 255);
    }
    Options o = Defaults();
    struct pglog_error e = {0, ""};
    int rc = pglog_options_parse(o.get(), text.c_str(), &e);
    ASSERT_TRUE(rc == 0 || (rc == PGLOG_EINVAL && e.code == rc && e.text[0])) << text;
    if (rc == 0) {
      rc = pglog_options_check(o.get(), &e);
      ASSERT_TRUE(rc == 0 || rc == PGLOG_EINVAL) << text;
    }
  }
}

/* -------------------------------------------------------------------------------------------- */

static struct pglog_rule Rule(const std::string &text) {
  return Parsed(text)->rule;
}

TEST(Rule, KeysAndIds) {
  struct pglog_rule r = Rule("pglog://");
  EXPECT_TRUE(rule_has_prefix(&r, S("pglog/")));
  EXPECT_FALSE(rule_has_prefix(&r, S("pglog")));
  EXPECT_FALSE(rule_has_prefix(&r, S("pglog0")));
  EXPECT_TRUE(slice_eq(rule_store_key(&r, S("pglog/1.2a/x")), S("1.2a/x")));
  EXPECT_EQ(rule_pgid_len(&r, S("1.2a/x/y")), 5u);
  EXPECT_EQ(rule_pgid_len(&r, S("1.2a")), 4u);
  EXPECT_EQ(rule_pgid_len(&r, S("")), 0u);
  struct pglog_rule f = Rule("pglog://?cf=P&prefix=&pgid=fixed:8");
  EXPECT_TRUE(rule_has_prefix(&f, S("")));
  EXPECT_EQ(rule_pgid_len(&f, S("0123456789")), 8u);
  EXPECT_EQ(rule_pgid_len(&f, S("01234567")), 8u);
  EXPECT_EQ(rule_pgid_len(&f, S("0123")), 4u);
}

static std::string RangeEnd(const std::string &prefix) {
  struct pglog_rule r = Rule("pglog://?cf=P&prefix=" + prefix);
  uint8_t end[PGLOG_PREFIX_MAX];
  size_t n = rule_range_end(&r, end);
  return std::string((char *)end, n);
}

TEST(Rule, RangeEnd) {
  EXPECT_EQ(RangeEnd("pglog/"), "pglog0");
  EXPECT_EQ(RangeEnd("0x61ff"), "b");
  EXPECT_EQ(RangeEnd("0x61ff01"), "a\xff\x02");
  EXPECT_EQ(RangeEnd("0xff"), "");
  EXPECT_EQ(RangeEnd("0xffff"), "");
  EXPECT_EQ(RangeEnd(""), "");
  EXPECT_EQ(RangeEnd("0x7f"), "\x80");
}

// PG by PG and then by name is the bytewise order of the store keys, as rule.h says.
TEST(Rule, OrderByIdAndNameIsBytewise) {
  for (const char *pgid : {"until:b", "fixed:2"}) {
    struct pglog_rule r = Rule(std::string("pglog://?pgid=") + pgid);
    std::vector<std::string> keys = {""};
    for (size_t i = 0; keys[i].size() < 4; i++)
      for (char c : {'a', 'b', 'c'})
        keys.push_back(keys[i] + c);
    auto split = [&](const std::string &k) {
      size_t n = rule_pgid_len(&r, S(k));
      return std::make_pair(k.substr(0, n), k.substr(n));
    };
    for (const std::string &a : keys)
      for (const std::string &b : keys)
        ASSERT_EQ(a < b, split(a) < split(b)) << pgid << " '" << a << "' '" << b << "'";
  }
}

static std::string Printed(const std::string &text) {
  struct pglog_rule r = Rule(text);
  char out[512];
  EXPECT_EQ(rule_print(&r, out, sizeof out), out);
  return out;
}

TEST(Rule, PrintCanBeParsedAgain) {
  EXPECT_EQ(Printed("pglog://"), "cf=default prefix=pglog/ pgid=until:/");
  EXPECT_EQ(Printed("pglog://?cf=P&prefix=&pgid=fixed:8"), "cf=P prefix= pgid=fixed:8");
  EXPECT_EQ(Printed("pglog://?prefix=a%20b&pgid=until:0x00"),
            "cf=default prefix=0x612062 pgid=until:0x00");
  EXPECT_EQ(Printed("pglog://?prefix=0x30783431"), "cf=default prefix=0x30783431 pgid=until:/");
  std::mt19937 rnd(1);
  for (int i = 0; i < 500; i++) {
    struct pglog_rule r = Rule("pglog://");
    r.prefix_len = 1 + rnd() % PGLOG_PREFIX_MAX;
    for (int k = 0; k < r.prefix_len; k++)
      r.prefix[k] = (uint8_t)(i % 2 ? rnd() : 0x21 + rnd() % 94);
    r.pgid_arg = rnd() % 256;
    char out[512];
    std::string text = rule_print(&r, out, sizeof out);
    std::replace(text.begin(), text.end(), ' ', '&');
    struct pglog_rule again = Rule("pglog://?" + text);
    ASSERT_TRUE(rule_eq(&r, &again)) << text;
  }
  char small[8];
  struct pglog_rule r = Rule("pglog://");
  EXPECT_STREQ(rule_print(&r, small, sizeof small), "cf=defa");
}

TEST(Rule, EqualityLooksAtEveryField) {
  struct pglog_rule a = Rule("pglog://");
  for (const char *other :
       {"?cf=P", "?prefix=pglog", "?prefix=pglog0", "?pgid=until:x", "?pgid=fixed:47"}) {
    struct pglog_rule b = Rule(std::string("pglog://") + other);
    EXPECT_FALSE(rule_eq(&a, &b)) << other;
    EXPECT_TRUE(rule_eq(&b, &b));
  }
}

TEST(Rule, EncodeDecode) {
  std::string longest = "pglog://?cf=" + std::string(255, 'c') + "&prefix=" + std::string(64, 'p');
  for (const std::string &text :
       {std::string("pglog://"), longest, std::string("pglog://?cf=P&prefix=&pgid=fixed:8")}) {
    struct pglog_rule r = Rule(text), d;
    uint8_t b[RULE_ENCODED_MAX] = {0};
    size_t n = rule_encode(&r, b);
    ASSERT_LE(n, (size_t)RULE_ENCODED_MAX);
    struct pglog_error e;
    ASSERT_EQ(rule_decode(&d, slice_make(b, n), &e), 0);
    EXPECT_TRUE(rule_eq(&r, &d));
    ASSERT_EQ(rule_decode(&d, slice_make(b, sizeof b), &e), 0);
    EXPECT_TRUE(rule_eq(&r, &d));
    for (size_t cut = 0; cut < n; cut++) {
      std::vector<uint8_t> exact(b, b + cut);
      ASSERT_EQ(rule_decode(&d, slice_make(exact.data(), cut), &e), PGLOG_ECORRUPT) << cut;
    }
    if (n < sizeof b) {
      b[sizeof b - 1] = 1;
      EXPECT_EQ(rule_decode(&d, slice_make(b, sizeof b), &e), PGLOG_ECORRUPT);
    }
  }
}

TEST(Rule, DecodeRefusesWhatEncodeNeverWrites) {
  struct pglog_rule r = Rule("pglog://"), d;
  uint8_t good[RULE_ENCODED_MAX];
  size_t n = rule_encode(&r, good);
  auto decode = [&](size_t at, uint8_t v) {
    std::vector<uint8_t> b(good, good + n);
    b[at] = v;
    struct pglog_error e;
    return rule_decode(&d, slice_make(b.data(), n), &e);
  };
  EXPECT_EQ(decode(0, 0), PGLOG_ECORRUPT);
  EXPECT_EQ(decode(0, 3), PGLOG_ECORRUPT);
  EXPECT_EQ(decode(1, 65), PGLOG_ECORRUPT);
  EXPECT_EQ(decode(3, 1), PGLOG_ECORRUPT);
  EXPECT_EQ(decode(10, 0), PGLOG_ECORRUPT);
  EXPECT_EQ(decode(11, 0), PGLOG_ECORRUPT);
  for (size_t at = 0; at < n; at++)
    for (int v = 0; v < 256; v++)
      if (decode(at, (uint8_t)v) == 0) {
        uint8_t again[RULE_ENCODED_MAX];
        ASSERT_EQ(rule_encode(&d, again), n);
        ASSERT_EQ(again[at], v);
      }
}
