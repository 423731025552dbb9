//go:build ignore

// pack OUT.zip PREFIX DIR: a module's zip file, the same for the same files.
package main

import (
	"archive/zip"
	"io/fs"
	"log"
	"os"
	"path/filepath"
)

func main() {
	out, err := os.Create(os.Args[1])
	check(err)
	archive := zip.NewWriter(out)
	files := os.DirFS(os.Args[3])
	check(fs.WalkDir(files, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := fs.ReadFile(files, path)
		if err != nil {
			return err
		}
		w, err := archive.Create(filepath.ToSlash(filepath.Join(os.Args[2], path)))
		if err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	}))
	check(archive.Close())
	check(out.Close())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
