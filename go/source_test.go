package watchcore_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// The order in which Go reads a variable and makes a call beside it is not specified: in
// "return x, f(&x)" x may be what it was before the call.
func TestNoVariableBesideTheCallThatSetsIt(t *testing.T) {
	files := token.NewFileSet()
	for code, want := range map[string]int{
		"return x, f(&x)": 1, "return g(x.y, f(&x.y))": 1, "return x + f(&x)": 1, "a, b := x, f(h(&x))": 1,
		"return f(&x)": 0, "return g(x, &x)": 0, "return f(&x) && x": 0, "return y, f(&x)": 0, "return x, func() { f(&x) }": 0,
		"return g(unsafe.Pointer(&x), len(x))": 0,
	} {
		file, err := parser.ParseFile(files, code, "package p\nfunc p() {"+code+"}", 0)
		check(t, err)
		if found := readBesideCalls(file); len(found) != want {
			t.Errorf("%s: found %d, want %d", code, len(found), want)
		}
	}
	looked := 0
	check(t, filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") {
			return err
		}
		file, err := parser.ParseFile(files, path, nil, 0)
		check(t, err)
		looked++
		for _, node := range readBesideCalls(file) {
			t.Errorf("%v: a variable is read beside the call that sets it", files.Position(node.Pos()))
		}
		return nil
	}))
	if looked < 50 {
		t.Errorf("only %d files were found", looked)
	}
}

// readBesideCalls is the expressions of a file that read what a call beside them sets.
func readBesideCalls(file *ast.File) (found []ast.Node) {
	ast.Inspect(file, func(node ast.Node) bool {
		var beside []ast.Expr // evaluated in no order that is specified
		switch n := node.(type) {
		case *ast.ReturnStmt:
			beside = n.Results
		case *ast.AssignStmt:
			beside = n.Rhs
		case *ast.CallExpr:
			beside = n.Args
		case *ast.CompositeLit:
			beside = n.Elts
		case *ast.BinaryExpr:
			if n.Op != token.LAND && n.Op != token.LOR {
				beside = []ast.Expr{n.X, n.Y}
			}
		}
		for i, call := range beside {
			set := setByCalls(call)
			for j, other := range beside {
				if i != j && reads(other, set) {
					found = append(found, other)
				}
			}
		}
		return true
	})
	return found
}

// setByCalls is the variables whose address a call of the expression is given.
func setByCalls(e ast.Expr) map[string]bool {
	set := map[string]bool{}
	inspect(e, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && types.ExprString(call.Fun) != "unsafe.Pointer" { // no call
			for _, argument := range call.Args {
				if address, ok := argument.(*ast.UnaryExpr); ok && address.Op == token.AND {
					set[types.ExprString(address.X)] = true
				}
			}
		}
		return true
	})
	return set
}

func reads(e ast.Expr, set map[string]bool) (found bool) {
	inspect(e, func(n ast.Node) bool {
		if address, ok := n.(*ast.UnaryExpr); ok && address.Op == token.AND {
			return false
		}
		if e, ok := n.(ast.Expr); ok && set[types.ExprString(e)] {
			found = true
		}
		return true
	})
	return found
}

// inspect leaves out what runs later.
func inspect(e ast.Expr, look func(ast.Node) bool) {
	ast.Inspect(e, func(n ast.Node) bool {
		_, later := n.(*ast.FuncLit)
		return n != nil && !later && look(n)
	})
}
