package kvevict

import (
	"errors"
	"fmt"
	"regexp"

	"kvevict.dev/kvevict/bindings/go/internal/native"
)

// ErrClosed is returned by calls on a closed handle and on a zero value.
var ErrClosed = errors.New("kvevict: use of a closed handle")

// Error is a failed call of the library. It unwraps to its Code.
type Error struct {
	Code    Status
	Message string // names the parameter, its value and the bound
}

func (e *Error) Error() string { return "kvevict: " + e.Code.name() + ": " + e.Message }

// Unwrap returns the code, for errors.Is.
func (e *Error) Unwrap() error { return e.Code }

// Error makes a Status comparable by errors.Is.
func (s Status) Error() string { return "kvevict: " + s.name() }

func (s Status) name() string { return native.Kvevict_status_name(int32(s)) }

func init() {
	function := regexp.MustCompile("kvevict_[a-z0-9_]+")
	native.NewError = func(code int32, message string) error {
		return &Error{Status(code), function.ReplaceAllStringFunc(message, native.OwnName)}
	}
}

// invalid is a mistake that is found before the library is called.
func invalid(format string, arguments ...any) error {
	return &Error{StatusInvalidArgument, fmt.Sprintf(format, arguments...)}
}
