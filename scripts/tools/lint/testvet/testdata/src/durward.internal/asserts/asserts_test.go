package asserts

import (
	"testing"
	"testing/synctest"

	"durward.internal/helper"
)

func TestCalls(t *testing.T) { // want "TestCalls asserts nothing"
	work()
}

func TestLogs(t *testing.T) { // want "TestLogs asserts nothing"
	t.Log(work())
	helper.Quiet(t)
}

func TestSkips(t *testing.T) { // want "TestSkips asserts nothing"
	t.Skip("not now")
}

func TestUsesAFixture(t *testing.T) { // want "TestUsesAFixture asserts nothing"
	number := helper.Start(t)
	*number = work()
}

func TestOfABubble(t *testing.T) { // want "TestOfABubble asserts nothing"
	synctest.Test(t, func(t *testing.T) { work() })
}

func TestOneSubtest(t *testing.T) {
	t.Run("checks", func(t *testing.T) { helper.Must(t, nil) })
	t.Run("calls", func(t *testing.T) { work() }) // want "this subtest of TestOneSubtest asserts nothing"
}

func FuzzCalls(f *testing.F) {
	f.Fuzz(func(t *testing.T, n int) { work() }) // want "this subtest of FuzzCalls asserts nothing"
}

func TestClosureThatChecksNothing(t *testing.T) { // want "TestClosureThatChecksNothing asserts nothing"
	check := func() { work() }
	check()
}

func work() int { return 1 }
