"""Called by notices.sh: notices.py METADATA TREE LOCK RUST_DOC RUST_VERSION DIRECTORY.

METADATA is the output of `cargo metadata`. TREE is that of `cargo tree`, each line a depth, a name and a version. RUST_DOC is where
the toolchain has the licences of Rust's standard library.
"""
import datetime
import html
import json
import os
import re
import sys
import textwrap

# A licence that these texts do not satisfy ends the release: somebody has to read it first.
ALLOWED = {"MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "ISC", "Unicode-3.0", "Unlicense", "Zlib"}
# Crates of the standard library that no Linux program has.
OTHER_SYSTEMS = re.compile(r"fortanix|hermit|moto|r-efi|vex|wasi|windows|wit-bindgen")
NOTICE = re.compile(r"(?i)(un)?licen[sc]e|copying|copyright|notice")


def spdx(licence):
    """A crate's field `license` in today's form."""
    return re.sub(r" ?/ ?", " OR ", licence or "none")


def allowed(expression):
    """Whether an SPDX expression can be satisfied by allowed licences."""
    operators = {"AND": "and", "OR": "or"}
    terms = re.sub(r"[\w.+-]+(?: WITH [\w.+-]+)?", lambda term: operators.get(term[0]) or str(term[0] in ALLOWED), expression)
    return eval(terms)


def dependencies(lines):
    """(name, version) of each crate of the trees -> those that it depends on."""
    graph, path = {}, []
    for line in lines:
        depth, name, version = line.split()[:3]
        crate = name, version.removeprefix("v")
        del path[int(depth):]
        graph.setdefault(crate, set())
        if path:
            graph[path[-1]].add(crate)
        path.append(crate)
    return graph


def notices(package):
    """The texts that a crate brings, C sources inside it included."""
    directory = os.path.dirname(package["manifest_path"])
    own = package["source"] is None
    for at, below, files in os.walk(directory):
        below[:] = [] if own else sorted(below)
        for name in sorted(files):
            # LICENSE at the top of this repository points to the two texts.
            if NOTICE.match(name) and not (own and name == "LICENSE"):
                with open(os.path.join(at, name), encoding="utf-8") as file:
                    yield file.read()


def standard_library(directory):
    """(name, licence, texts) of the standard library and of the crates in it."""
    plain = lambda text: html.unescape(re.sub(r"<[^>]*>", "", text))
    try:
        with open(f"{directory}/COPYRIGHT-library.html", encoding="utf-8") as file:
            head, *crates = file.read().split("<h3>")
    except FileNotFoundError as error:
        sys.exit(f"notices: {error.filename} is missing: take a toolchain of rustup, which brings the licences of the standard library")
    parts = re.findall(r"<b>(File/Directory|License|Copyright):</b>(.*?)</p>", head, re.S)
    own, texts = [f"{plain(value).strip()}\n" if kind == "File/Directory" else f"    {plain(value).strip()}\n" for kind, value in parts], []
    for licence in sorted(set(re.findall(r"[\w.-]*\d[\w.-]*|MIT", " ".join(value for kind, value in parts if kind == "License")))):
        with open(f"{directory}/licenses/{licence}.txt", encoding="utf-8") as file:
            texts.append(file.read())
    yield "Rust's standard library", "Apache-2.0 OR MIT", ["".join(own), *texts]
    for crate in crates:
        name = re.match(r"\W*(\S+?)-(\d\S*)</h3>", crate)
        if OTHER_SYSTEMS.match(name[1]):
            continue
        licence = re.search(r"<b>License:</b> (.*?)</p>", crate)[1]
        yield f"{name[1]} {name[2]} (in the standard library)", spdx(licence), [plain(text) for text in re.findall(r"<pre>(.*?)</pre>", crate, re.S)]


def third_party(packages, rust):
    """The text of THIRD-PARTY."""
    named, users, shown = [], {}, {}
    def add(name, licence, texts):
        named.append(f"{name}: {licence}")
        for text in texts:
            words = " ".join(text.split())
            shown.setdefault(words, textwrap.dedent(text.expandtabs()).strip("\n").rstrip())
            users.setdefault(words, []).append(name)
    for package in packages:
        # A crate without a text has that of another crate of its repository and licence.
        texts = list(notices(package)) or next(
            filter(None, (list(notices(other)) for other in packages
                          if (other["repository"], other["license"]) == (package["repository"], package["license"]))), None)
        if not texts:
            sys.exit(f"notices: {package['name']} brings no text of its licence, {package['license']}")
        add(f"{package['name']} {package['version']}", package["license"], texts)
    for part in rust:
        add(*part)
    rule = "=" * 100
    lines = ["The libraries and the command of watchcore contain these works, under these licences. The texts follow.", "", *named]
    for words in sorted(users, key=lambda words: (users[words][0].lower(), words)):
        of = textwrap.wrap(", ".join(dict.fromkeys(users[words])), 100, break_long_words=False, break_on_hyphens=False)
        lines += ["", rule, *of, rule, "", *(line.rstrip() for line in shown[words].splitlines())]
    return "\n".join(lines) + "\n"


def reference(crate):
    return f"pkg:cargo/{crate[0]}@{crate[1].replace('+', '%2B')}"


def sbom(packages, graph, sums, rust_version):
    """CycloneDX, whose only time is that of the commit."""
    def component(package):
        crate = package["name"], package["version"]
        entry = {"type": "library", "bom-ref": reference(crate), "name": crate[0], "version": crate[1], "description": package["description"],
                 "licenses": [{"expression": package["license"]}], "purl": reference(crate)}
        if crate in sums:
            entry["hashes"] = [{"alg": "SHA-256", "content": sums[crate]}]
        if package["repository"]:
            entry["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
        return entry
    version = next(package["version"] for package in packages if package["name"] == "watchcore")
    roots = sorted(reference(crate) for crate in graph if crate[0] in ("watchcore-capi", "watchcore-cli"))
    std = {"type": "library", "bom-ref": "std", "name": "std", "version": rust_version, "description": "Rust's standard library",
           "licenses": [{"expression": "Apache-2.0 OR MIT"}], "purl": f"pkg:github/rust-lang/rust@{rust_version}"}
    time = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
    return {
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "metadata": {"timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ"),
                     "component": {"type": "application", "bom-ref": "watchcore", "name": "watchcore", "version": version}},
        "components": [component(package) for package in packages] + [std],
        "dependencies": [{"ref": "watchcore", "dependsOn": [*roots, "std"]}] + [
            {"ref": reference(crate), "dependsOn": sorted(map(reference, graph[crate]))} for crate in sorted(graph)],
    }


def main(metadata, tree, lock, rust_doc, rust_version, directory):
    with open(tree, encoding="utf-8") as file:
        graph = dependencies(file)
    with open(metadata, encoding="utf-8") as file:
        packages = sorted((package for package in json.load(file)["packages"] if (package["name"], package["version"]) in graph),
                          key=lambda package: (package["name"], package["version"]))
    for package in packages:
        package["license"] = spdx(package["license"])
    rust = list(standard_library(rust_doc))
    for name, licence in [(package["name"], package["license"]) for package in packages] + [part[:2] for part in rust]:
        if not allowed(licence):
            sys.exit(f"notices: {name} has the licence {licence}, which scripts/release/notices.py does not allow")
    with open(lock, encoding="utf-8") as file:
        sums = {(name, version): checksum for name, version, checksum in re.findall(
            r'name = "(.*)"\nversion = "(.*)"\nsource = .*\nchecksum = "(.*)"', file.read())}
    with open(f"{directory}/THIRD-PARTY", "w", encoding="utf-8") as file:
        file.write(third_party(packages, rust))
    with open(f"{directory}/SBOM", "w", encoding="utf-8") as file:
        json.dump(sbom(packages, graph, sums, rust_version), file, indent=1)
        file.write("\n")


main(*sys.argv[1:])
