package kvevict

import (
	"strconv"
	"strings"
	"unsafe"

	"kvevict.dev/kvevict/bindings/go/internal/native"
)

// Policy is what survives an eviction: signal, shaping, budget.
//
// Always kept are the first Sink tokens, the last Recent, the observation window (unless KeepWindow
// is false) and protected positions; they count inside the budget. The rest of the budget goes to
// the highest scores.
//
// A Policy is its text form, and comparable. Start from NewPolicy or ParsePolicy: the zero
// Policy is none. It has the parameters that Parameters lists for it: asking for others or
// setting them is an error, and so is a value outside a parameter's range. Whether values can
// be combined is checked by Validate and by calls that use the policy.
type Policy struct {
	text string
}

// NewPolicy returns a policy or a preset by its name, with its defaults.
func NewPolicy(name string) (Policy, error) { return ParsePolicy(name) }

// ParsePolicy reads the text form, `name` or `name:key=value,key=value`, where name is a policy or
// a preset. An error gives the column and what was expected there.
func ParsePolicy(text string) (Policy, error) {
	policy, err := openPolicy(text)
	if err != nil {
		return Policy{}, err
	}
	defer native.Kvevict_policy_destroy(policy)
	return policyOf(policy)
}

// With returns the policy with some keys of the text form changed: "budget=0.25,sink=8".
func (p Policy) With(keys string) (Policy, error) {
	if strings.Contains(p.text, ":") {
		return ParsePolicy(p.text + "," + keys)
	}
	return ParsePolicy(p.text + ":" + keys)
}

// String is the text form: the name and every key that differs from that policy's default.
func (p Policy) String() string { return p.text }

// Validate checks whether the values can be combined, for any context length.
func (p Policy) Validate() error { return p.call(native.Kvevict_policy_validate) }

// ResolvedPolicy is a policy in tokens, for one context length.
type ResolvedPolicy struct {
	Budget   int // tokens kept in all
	Sink     int // first tokens kept
	Recent   int // last tokens kept, the observation window included
	Selected int // tokens chosen by score
	// QueryRows score a layer: the observation window of policies that have one,
	// QueryRowsAny, QueryRowsAll, or 0 if queries are not read.
	QueryRows int

	ScoresAreMass bool // whether the scores that choose lists are a mass
}

// Values of QueryRows of a ResolvedPolicy.
const (
	QueryRowsAny = -1 // as many as are given (h2o)
	QueryRowsAll = -2 // a row for each slot held (non-causal)
)

// Resolve turns the policy into token counts. If the context is left alone, the
// budget is all of it.
func (p Policy) Resolve(nContext int) (ResolvedPolicy, error) {
	var err error
	context := count(&err, "nContext", nContext)
	out := native.ResolvedPolicy{StructSize: uint32(unsafe.Sizeof(native.ResolvedPolicy{}))}
	if err == nil {
		err = p.call(func(policy uintptr) error {
			return native.Kvevict_policy_resolve(policy, context, &out)
		})
	}
	if err != nil {
		return ResolvedPolicy{}, err
	}
	return ResolvedPolicy{
		int(out.Budget), int(out.NSink), int(out.NRecent), int(out.NSelected),
		int(int32(out.NQueryRows)), out.ScoresAreMass != 0,
	}, nil
}

// LayerBudgets is the tokens that each layer keeps of a context.
func (p Policy) LayerBudgets(nContext, nLayers int) ([]uint32, error) {
	var err error
	context := count(&err, "nContext", nContext)
	layers := count(&err, "nLayers", nLayers)
	if err == nil && layers > maxLayers {
		err = invalid("nLayers %d > %d", layers, maxLayers)
	}
	if err != nil {
		return nil, err
	}
	budgets := make([]uint32, layers)
	err = p.call(func(policy uintptr) error {
		return native.Kvevict_policy_layer_budgets(policy, context, first(budgets), uint64(layers))
	})
	if err != nil {
		return nil, err
	}
	return budgets, nil
}

// NeedOf says whether the policy wants an input, so that an engine makes no others.
func (p Policy) NeedOf(input Input) (Need, error) {
	var need int32
	err := p.call(func(policy uintptr) error {
		return native.Kvevict_policy_need(policy, int32(input), &need)
	})
	return Need(need), err
}

// maxLayers is the header's bound. It is checked before memory is made for so many.
const maxLayers = 4096

// first is a slice's memory as cgo checks it.
func first[T any](s []T) *T {
	if len(s) == 0 {
		return nil
	}
	return &s[0]
}

// openPolicy makes a native policy, which the caller destroys.
func openPolicy(text string) (uintptr, error) {
	terminated, err := zeroTerminated("text", text)
	if err != nil {
		return 0, err
	}
	var policy uintptr
	err = native.Kvevict_policy_create((*byte)(terminated.owner), &policy)
	return policy, err
}

// policyOf is the Policy with a native policy's text.
func policyOf(policy uintptr) (Policy, error) {
	var length uint64
	if err := native.Kvevict_policy_format(policy, nil, 0, &length); err != nil {
		return Policy{}, err
	}
	text := make([]byte, length+1)
	if err := native.Kvevict_policy_format(policy, &text[0], length+1, nil); err != nil {
		return Policy{}, err
	}
	return Policy{string(text[:length])}, nil
}

// call calls with the native policy of the text. Its values are set one by one,
// since their combination may be invalid yet.
func (p Policy) call(do func(policy uintptr) error) error {
	parts := strings.Split(strings.Replace(p.text, ":", ",", 1), ",")
	policy, err := openPolicy(parts[0])
	if err != nil {
		return err
	}
	defer native.Kvevict_policy_destroy(policy)
	for _, part := range parts[1:] {
		equals := strings.Index(part, "=")
		if err := setWord(policy, part[:equals], part[equals+1:]); err != nil {
			return err
		}
	}
	return do(policy)
}

func setWord(policy uintptr, key, value string) error {
	terminated, err := zeroTerminated(key, value)
	if err != nil {
		return err
	}
	return native.Kvevict_policy_set(policy, keyOf(key), (*byte)(terminated.owner))
}

// keyOf is a parameter's name as C reads it.
func keyOf(key string) *byte { return &append([]byte(key), 0)[0] }

// The methods below read and set parameters of a kind, see parameters.go.

func (p Policy) number(key string) (value float64, err error) {
	err = p.call(func(policy uintptr) error {
		return native.Kvevict_policy_get_number(policy, keyOf(key), &value)
	})
	return value, err
}

func (p Policy) count(key string) (int, error) {
	value, err := p.number(key)
	return int(value), err
}

func (p Policy) flag(key string) (bool, error) {
	value, err := p.number(key)
	return value != 0, err
}

func (p Policy) seed(key string) (uint64, error) {
	text, err := p.word(key)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(text, 10, 64)
}

func (p Policy) word(key string) (text string, err error) {
	err = p.call(func(policy uintptr) error {
		var value [40]byte // holds every value
		var length uint64
		err := native.Kvevict_policy_get(policy, keyOf(key), &value[0], uint64(len(value)), &length)
		text = string(value[:length])
		return err
	})
	return text, err
}

// set changes the policy by a call.
func (p *Policy) set(change func(policy uintptr) error) error {
	return p.call(func(policy uintptr) error {
		if err := change(policy); err != nil {
			return err
		}
		changed, err := policyOf(policy)
		if err == nil {
			*p = changed
		}
		return err
	})
}

func (p *Policy) setNumber(key string, value float64) error {
	return p.set(func(policy uintptr) error {
		return native.Kvevict_policy_set_number(policy, keyOf(key), value)
	})
}

func (p *Policy) setCount(key string, value int) error { return p.setNumber(key, float64(value)) }

func (p *Policy) setFlag(key string, value bool) error { return p.setNumber(key, float64(flag(value))) }

func (p *Policy) setSeed(key string, value uint64) error {
	return p.setWord(key, strconv.FormatUint(value, 10))
}

func (p *Policy) setWord(key, value string) error {
	return p.set(func(policy uintptr) error { return setWord(policy, key, value) })
}
