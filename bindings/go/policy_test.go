package kvevict

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func policyNamed(t *testing.T, name string) Policy {
	t.Helper()
	policy, err := NewPolicy(name)
	must(t, err)
	return policy
}

func TestPolicyIsItsText(t *testing.T) {
	policy, err := ParsePolicy("snapkv: window=16, budget=512")
	must(t, err)
	same(t, "snapkv:budget=512,window=16", policy.String())
	other := policyNamed(t, "snapkv")
	must(t, other.SetWindow(16))
	must(t, other.SetBudget(512))
	same(t, true, policy == other)
	other, err = policyNamed(t, "snapkv").With("window=16")
	must(t, err)
	other, err = other.With("budget=512")
	must(t, err)
	same(t, policy, other)
	must(t, other.SetBudget(0.25))
	budget, err := policy.Budget()
	must(t, err)
	same(t, 512.0, budget) // a value
}

// Each row of the library's has a method that reads it and one that sets it.
func TestEveryParameterIsThere(t *testing.T) {
	rows, err := Parameters("")
	must(t, err)
	setters := 0
	for policy, i := reflect.TypeOf(&Policy{}), 0; i < policy.NumMethod(); i++ {
		if strings.HasPrefix(policy.Method(i).Name, "Set") {
			setters++
		}
	}
	same(t, len(rows), setters)
	for _, row := range rows {
		if row.Doc == "" {
			t.Error(row.Key)
		}
		policy, before := havingParameter(t, row.Key)
		name := ""
		for _, word := range strings.Split(row.Key, "_") {
			name += strings.ToUpper(word[:1]) + word[1:]
		}
		get := reflect.ValueOf(&policy).MethodByName(name)
		set := reflect.ValueOf(&policy).MethodByName("Set" + name)
		same(t, before, textOf(get.Call(nil)[0].Interface()))
		for _, value := range otherValues(row, before) {
			if failed := set.Call([]reflect.Value{reflect.ValueOf(value)})[0]; !failed.IsNil() {
				t.Error(row.Key, failed)
			}
			read := get.Call(nil)
			same(t, value, read[0].Interface())
			same(t, true, read[1].IsNil())
			pairs := strings.FieldsFunc(policy.String(), func(c rune) bool { return c == ':' || c == ',' })
			found := false
			for _, pair := range pairs {
				found = found || pair == row.Key+"="+textOf(value)
			}
			if !found {
				t.Errorf("%s=%v is not in %s", row.Key, value, policy)
			}
		}
	}
}

// havingParameter is a policy that has a parameter, and its default.
func havingParameter(t *testing.T, key string) (Policy, string) {
	for _, info := range Policies() {
		rows, err := Parameters(info.Name)
		must(t, err)
		for _, row := range rows {
			if row.Key == key {
				return policyNamed(t, info.Name), row.Default
			}
		}
	}
	t.Fatal("no policy has ", key)
	return Policy{}, ""
}

func textOf(value any) string {
	switch value {
	case true:
		return "yes"
	case false:
		return "no"
	}
	return fmt.Sprint(value)
}

func otherValues(row ParameterInfo, before string) []any {
	switch row.Type {
	case ParameterNumber:
		if before == "0.5" {
			return []any{0.25}
		}
		return []any{0.5}
	case ParameterCount:
		return []any{int(row.Least) + 1}
	case ParameterCountOrShare:
		return []any{0.25, 3.0}
	case ParameterSeed:
		return []any{^uint64(0)}
	case ParameterFlag:
		return []any{before == "no"}
	case ParameterPool:
		return []any{"max5"}
	}
	var words []any
	for _, word := range strings.Split(row.Words, "|") {
		if word != before {
			words = append(words, word)
		}
	}
	return words
}

func TestPolicyMistakes(t *testing.T) {
	snapkv, knorm, clash := policyNamed(t, "snapkv"), policyNamed(t, "knorm"), policyNamed(t, "streaming-llm")
	must(t, clash.SetBudget(64))
	must(t, clash.SetSink(64)) // values go together where it is used
	refusals{
		{second(ParsePolicy("snapkv:bugdet=512")), "column 8"},
		{second(ParsePolicy("snapkv\x00")), "zero byte at 6"},
		{second(ParsePolicy("")), "column"},
		{clash.Validate(), "64"},
		{second(clash.Resolve(1000)), "64"},
		{second(newContext(t, nil).NewPlan(Geometry{}, clash, nil)), "64"},
		{snapkv.SetSink(-1), "-1"},
		{snapkv.SetMargin(1 << 32), "4294967296"},
		{snapkv.SetPool("avg3,sink=1"), "pool"},
		{snapkv.SetPool("avg3\x00"), "pool has a zero byte at 4"},
		{snapkv.SetBlock(4), "block"},
		{second(knorm.Window()), "window"},
		{second(knorm.Ranks()), "ranks"},
		{Policy{}.Validate(), "column 1"},
		{second(Parameters("snapkw")), "snapkw"},
	}.check(t)
	same(t, policyNamed(t, "snapkv"), snapkv)
	must(t, clash.SetBudget(128))
	must(t, clash.Validate())
	none, err := Parameters("none")
	must(t, err)
	same(t, 0, len(none))
}
