# watchcore: build, test, install. `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

CARGO ?= cargo
STRIP ?= strip
PREFIX ?= /usr/local
DESTDIR ?=
BINDIR ?= $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
PKGCONFIGDIR ?= $(LIBDIR)/pkgconfig
MANDIR ?= $(PREFIX)/share/man
BASHDIR ?= $(PREFIX)/share/bash-completion/completions
ZSHDIR ?= $(PREFIX)/share/zsh/site-functions
FISHDIR ?= $(PREFIX)/share/fish/vendor_completions.d
DATADIR ?= $(PREFIX)/share/watchcore
VERSION = $(shell sed -n 's/^version *= *"\(.*\)"/\1/p' Cargo.toml | head -n 1)
PARTS =
FAULT ?=
BENCH ?=
MUTANT ?=
SANITIZER ?=
FUZZ_SECONDS ?= 60

ABI := 0
HEADER := include/watchcore.h
# Where the C tests and the Go package look for the library.
OUT := target/watchcore
OUT_TEST := target/watchcore-test
# The command, as `make build` makes it.
COMMAND ?= target/release/watchcore
# The library is always built in target/, whatever the caller's settings say.
cargo_lib = env -u CARGO_TARGET_DIR -u CARGO_BUILD_TARGET $(CARGO) build -p watchcore-capi --lib

# Where the Go module has the library of this machine: scripts/go-dist.sh says the names.
GO_OBJECT = $$(scripts/go-dist.sh --object)
GO_TARGETS ?=

# $(call pc,PREFIX,LIBDIR,INCLUDEDIR,FILE)
define pc
sed -e 's|@PREFIX@|$(1)|' -e 's|@LIBDIR@|$(2)|' -e 's|@INCLUDEDIR@|$(3)|' \
	-e "s|@VERSION@|$(VERSION)|" scripts/$(notdir $(4)).in >'$(4)'
endef

# $(call completion,SHELL,DIRECTORY,FILE)
define completion
install -d '$(DESTDIR)$(2)'
umask 022; '$(DESTDIR)$(BINDIR)/watchcore' completions $(1) >'$(DESTDIR)$(2)/$(3)'
endef

# $(call place,CARGO_OUTPUT,DIRECTORY,SETTINGS,STRIP,OBJECT): the library as a C program sees it.
# STRIP takes the debug information out of the shared one, or is the command that does nothing.
# OBJECT is where the static one goes as one object, if anywhere.
define place
@test -f $(HEADER) || { echo "$(HEADER) is missing: run 'make header'" >&2; exit 1; }
@mkdir -p $(2)/include
@$(3) scripts/static-archive.sh $(1) $(2)/libwatchcore.a $(5)
@cp -p $(1)/libwatchcore.so $(2)/.new.so
@$(4) $(2)/.new.so
@mv -f $(2)/.new.so $(2)/libwatchcore.so.$(ABI)
@ln -sfn libwatchcore.so.$(ABI) $(2)/libwatchcore.so
@cmp -s $(HEADER) $(2)/include/watchcore.h || cp $(HEADER) $(2)/include/watchcore.h
@$(call pc,$${pcfiledir},$${prefix},$${prefix}/include,$(2)/watchcore.pc)
@! command -v readelf >/dev/null || readelf -d $(2)/libwatchcore.so | grep -q 'SONAME.*\[libwatchcore\.so\.$(ABI)\]' \
	|| { echo "libwatchcore.so has not the soname libwatchcore.so.$(ABI): see watchcore-capi/build.rs" >&2; exit 1; }
endef

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  variables: PREFIX, DESTDIR, BINDIR, LIBDIR, INCLUDEDIR, MANDIR (install, install-command, uninstall), FAULT (demo, demo-apiserver), GO_TARGETS (go-dist), BENCH (bench), MUTANT (mutants), SANITIZER (sanitize), CARGO, STRIP,"
	@echo "  NO_BUILD=1 (install, bench: take the library as it is)"

.PHONY: build
build: ## the Rust library and the command line, target/release/watchcore
	$(CARGO) build --release --workspace

.PHONY: lib
lib: ## the C library: archive, shared library, header and pkg-config file in target/watchcore; and inside the Go module
	$(cargo_lib) --profile dist --target-dir target
	$(call place,target/dist,$(OUT),,$(STRIP) --strip-debug,$(GO_OBJECT))
	@cmp -s $(HEADER) go/libwatchcore.h || cp $(HEADER) go/libwatchcore.h

.PHONY: go-dist
go-dist: ## libraries for GO_TARGETS="linux/amd64 linux/arm64 linux/amd64/musl ..." inside the Go module: go/ is whole then
	@CARGO='$(CARGO)' scripts/go-dist.sh $(GO_TARGETS)

# An example makes cargo choose the features of `cargo test`, whose builds of the dependencies are taken then.
.PHONY: lib-test
lib-test: ## the same unoptimized, with feature debug and line tables, in target/watchcore-test
	env -u CARGO_TARGET_DIR -u CARGO_BUILD_TARGET $(CARGO) build --workspace --all-features --lib --example fake_etcd --target-dir target
	$(call place,target/debug,$(OUT_TEST),KEEP_DEBUG=1,:)

.PHONY: test
test: ## every test, and a summary
	@scripts/test.sh

.PHONY: test-rust
test-rust: ## format, lints, unit, integration and documentation tests
	@scripts/test.sh rust

.PHONY: test-loom
test-loom: ## the concurrency models, all orders of the memory accesses; the longest to the depth that `make test` leaves out
	@WATCHCORE_LOOM_DEEP=1 scripts/test.sh loom

.PHONY: test-c
test-c: ## the C and C++ tests
	@scripts/test.sh c

.PHONY: test-go
test-go: ## the Go tests, with the race detector
	@scripts/test.sh go

.PHONY: integration-apiserver
integration-apiserver: ## Kubernetes' own integration tests over go/apiserver; ONLY="PACKAGE ..." and RUN=REGEX for some
	@scripts/integration-apiserver.sh $(foreach package,$(ONLY),--only '$(package)') $(if $(RUN),--run '$(RUN)')

.PHONY: sanitize
sanitize: ## the core's tests under AddressSanitizer, ThreadSanitizer and Miri; SANITIZER=name for one
	@scripts/sanitize.sh $(SANITIZER)

.PHONY: fuzz
fuzz: ## what strangers send to watchcore-http, under cargo-fuzz: each target for FUZZ_SECONDS
	@command -v cargo-fuzz >/dev/null || { echo "make fuzz needs cargo-fuzz: cargo install cargo-fuzz" >&2; exit 1; }
	cd watchcore-http && for target in $$($(CARGO) fuzz list); do \
		RUSTC_BOOTSTRAP=1 $(CARGO) fuzz run $$target -- -max_total_time=$(FUZZ_SECONDS); done

.PHONY: tables
tables: ## the tables of docs/ that are printed from contract/
	@WRITE_TABLES=1 $(CARGO) test --quiet --test rows tables

.PHONY: mutants
mutants: ## breaks the code as tests/mutants says and expects the tests to notice; MUTANT=name for one
	@scripts/mutants.sh $(MUTANT)

.PHONY: header
header: ## write include/watchcore.h anew from the Rust source
	WATCHCORE_BLESS=1 $(CARGO) test -p watchcore-capi --test header

.PHONY: release
release: ## everything that is published, in target/release-$(VERSION): VERSION=0.1.0
	@scripts/release.sh '$(VERSION)'

.PHONY: test-release
test-release: ## takes up what `make release` has made on clean roots, as a stranger does; PARTS="go deb" for some
	@scripts/test-release.sh '$(VERSION)' $(PARTS)

.PHONY: semver
semver: ## the Rust crates and the C header against the newest release, by cargo-semver-checks and abidiff
	@scripts/semver.sh

.PHONY: bench
bench: ## the benchmarks; BENCH=name for one of Rust's, BENCH=c or BENCH=go for the others
ifeq ($(BENCH),c)
	@$(MAKE) --no-print-directory -C ffi-tests bench
else ifeq ($(BENCH),go)
	@$(if $(NO_BUILD),,$(MAKE) --no-print-directory lib)
	@scripts/go.sh test -run '^$$' -bench . ./...
else
	$(CARGO) bench --workspace $(if $(BENCH),--bench $(BENCH),--benches)
endif

.PHONY: bench-peers
bench-peers: ## watchcore beside its peers, ten minutes; QUICK=1 for two, MINUTES=N
	@scripts/bench-peers.sh

.PHONY: bench-http
bench-http: ## `watchcore serve` beside Kubernetes' own server and a bare loop; ROWS="fanout idle list latency deaf hostile", or soak
	@scripts/bench-http.sh

.PHONY: bench-apiserver
bench-apiserver: ## kube-apiserver beside the same with watchcore's storage; ROWS="ready memory lists latency slow reports resources leases"
	@$(if $(NO_BUILD),,$(MAKE) --no-print-directory lib)
	@scripts/bench-apiserver.sh

.PHONY: performance
performance: ## the table of docs/PERFORMANCE.md, and target/peers/report.md with everybody, from what bench-peers measured
	@test -x target/peers/release/peers || { echo "nothing was measured: run 'make bench-peers'" >&2; exit 1; }
	@target/peers/release/peers render

.PHONY: demo
demo: ## a live demonstration against etcd; FAULT=name adds a fault
	@scripts/demo.sh "$(FAULT)"

.PHONY: demo-http
demo-http: ## the same for watchcore serve: curl, client-go, kubectl, kube-rs, WebSocket and EventSource at once
	@scripts/demo-http.sh

.PHONY: demo-apiserver
demo-apiserver: ## the same for kube-apiserver: Kubernetes from the registry with watchcore's storage, etcd and server killed; FAULT=drop, double
	@scripts/demo-apiserver.sh $(if $(FAULT),-fault $(FAULT))

.PHONY: install
install: $(if $(NO_BUILD),,lib) ## header, libraries, pkg-config files and the library's man page below DESTDIR and PREFIX
	install -d '$(DESTDIR)$(INCLUDEDIR)' '$(DESTDIR)$(LIBDIR)' '$(DESTDIR)$(PKGCONFIGDIR)'
	install -m 644 $(HEADER) '$(DESTDIR)$(INCLUDEDIR)/watchcore.h'
	install -m 644 $(OUT)/libwatchcore.a '$(DESTDIR)$(LIBDIR)/libwatchcore.a'
	install -m 755 $(OUT)/libwatchcore.so.$(ABI) '$(DESTDIR)$(LIBDIR)/libwatchcore.so.$(ABI)'
	ln -sfn libwatchcore.so.$(ABI) '$(DESTDIR)$(LIBDIR)/libwatchcore.so'
	$(call pc,$(PREFIX),$(LIBDIR),$(INCLUDEDIR),$(DESTDIR)$(PKGCONFIGDIR)/watchcore.pc)
	$(call pc,$(PREFIX),$(LIBDIR),$(INCLUDEDIR),$(DESTDIR)$(PKGCONFIGDIR)/watchcore-static.pc)
	install -d '$(DESTDIR)$(MANDIR)/man3' '$(DESTDIR)$(DATADIR)'
	umask 022; awk -v version=$(VERSION) -f scripts/manual.awk $(HEADER) >'$(DESTDIR)$(MANDIR)/man3/watchcore.3'
	install -m 644 watchcore-capi/watchcore.supp '$(DESTDIR)$(DATADIR)/watchcore.supp'

.PHONY: install-command
install-command: ## the command, its man pages and completions below DESTDIR and PREFIX
ifndef NO_BUILD
	$(CARGO) build --release -p watchcore-cli
endif
	install -d '$(DESTDIR)$(BINDIR)' '$(DESTDIR)$(MANDIR)/man1'
	install -m 755 '$(COMMAND)' '$(DESTDIR)$(BINDIR)/watchcore'
	umask 022; '$(DESTDIR)$(BINDIR)/watchcore' manual '$(DESTDIR)$(MANDIR)/man1'
	$(call completion,bash,$(BASHDIR),watchcore)
	$(call completion,zsh,$(ZSHDIR),_watchcore)
	$(call completion,fish,$(FISHDIR),watchcore.fish)

.PHONY: uninstall
uninstall: ## what install and install-command have put there, with the same variables
	rm -f '$(DESTDIR)$(INCLUDEDIR)/watchcore.h' $(foreach name,libwatchcore.a libwatchcore.so.$(ABI) libwatchcore.so,'$(DESTDIR)$(LIBDIR)/$(name)')
	rm -f '$(DESTDIR)$(PKGCONFIGDIR)/watchcore.pc' '$(DESTDIR)$(PKGCONFIGDIR)/watchcore-static.pc'
	rm -f '$(DESTDIR)$(MANDIR)/man3/watchcore.3'
	rm -f '$(DESTDIR)$(BINDIR)/watchcore' '$(DESTDIR)$(MANDIR)/man1/'{watchcore,watchcore-*}.1
	rm -f '$(DESTDIR)$(BASHDIR)/watchcore' '$(DESTDIR)$(ZSHDIR)/_watchcore' '$(DESTDIR)$(FISHDIR)/watchcore.fish'
	rm -f '$(DESTDIR)$(DATADIR)/watchcore.supp'
	-rmdir '$(DESTDIR)$(DATADIR)' 2>/dev/null

.PHONY: clean
clean: ## remove everything that was built, the test etcd too
	rm -rf target tools/protoc-shim/target
