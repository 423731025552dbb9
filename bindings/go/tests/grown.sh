#!/usr/bin/env bash
# grown.sh GO...: run by bindings/table/grow.sh for the module with what was made from
# the header in INCLUDE. It does not compile unless Go's structs have C's layout.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
module=$GROWN/module
mkdir "$module"
cp -R --parents go.mod ./*.go internal "$module"
cp "$GROWN"/enums.go "$GROWN"/options.go "$GROWN"/parameters.go "$module"
cp "$GROWN"/native.go "$GROWN"/structs.go "$module/internal/native"
cp "$GROWN"/layout.go "$module/internal/native"
cp "$GROWN"/wrap.c "$module/internal/native/native_wrap.c"
cd "$module"
export CGO_CPPFLAGS=-I$INCLUDE
"$@" build . ./internal/native
