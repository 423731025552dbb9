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
# This is no test file: tests would be linked with a library that has not grown.
cp "$GROWN"/layout_test.go "$module/internal/native/layout.go"
cp "$GROWN"/wrap.c "$module/internal/native/native_wrap.c"
cd "$module"
export CGO_CPPFLAGS=-I$INCLUDE
rm internal/native/layout_test.go
"$@" build . ./internal/native
