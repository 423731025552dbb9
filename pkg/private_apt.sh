# Sourced by scripts that fetch a Debian package for the build: apt with lists, state
# and cache of its own, so that the machine's apt and its packages stay as they are.

readonly cache=${XDG_CACHE_HOME:-${HOME:-$PWD/build}/.cache}/kvevict
readonly debian_keyring=/usr/share/keyrings/debian-archive-keyring.gpg

say() { printf '== %s\n' "$*" >&2; }

# Prints the mirror of the running release, if this is Debian.
debian_mirror() {
  local VERSION_CODENAME=none
  [[ ! -r /etc/os-release ]] || . /etc/os-release
  [[ ${ID:-} == debian ]] || return 0
  apt-get indextargets --format '$(RELEASE) $(REPO_URI)' 'Identifier: Packages' \
    2>/dev/null | awk -v codename="$VERSION_CODENAME" \
    '$1 == codename || $1 ~ /^(old)?stable$/ { print $2; exit }'
}

# private_apt WORK SOURCE: from here on apt works in the folder WORK and only knows
# the source "deb uri suite component", whose signature it checks.
private_apt() {
  local work=$1 kind rest
  read -r kind rest <<<"$2"
  mkdir -p "$work"/{state/lists/partial,cache/archives/partial}
  echo "$kind [signed-by=$debian_keyring] $rest" >"$work/sources.list"
  # Proxies and the like (Acquire::*) are the machine's. Everything else, above all
  # its hooks, is not read.
  {
    apt-config dump | grep '^Acquire::' || true
    cat <<CONF
Dir::Etc::main "/dev/null";
Dir::Etc::parts "/dev/null";
Dir::Etc::sourcelist "$work/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::State "$work/state";
Dir::State::status "$work/state/status";
Dir::Cache "$work/cache";
Acquire::Languages "none";
APT::Sandbox::User "$(id -un)";
CONF
  } >"$work/apt.conf"
  touch "$work/state/status"
  export APT_CONFIG=$work/apt.conf
}
