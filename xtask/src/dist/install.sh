#!/bin/sh
# Installs rdmatop from the unpacked tarball that this script lies in, and takes it away again.
#
#   ./install.sh [--prefix DIR]              copies the files below DIR, else /usr/local
#   ./install.sh [--prefix DIR] --list       names them and changes nothing
#   ./install.sh [--prefix DIR] --uninstall  removes what was installed, and nothing else
#
# It writes below DIR alone, and what it wrote stands in DIR/share/doc/rdmatop-bpf/installed. It starts nothing, enables
# nothing, and gives no rights. As root it refuses a DIR in which another user can put links in its way.
set -eu
umask 022

fail() {
    echo "install.sh: $*" >&2
    exit 1
}

prefix=/usr/local
what=install
while [ $# -gt 0 ]; do
    case $1 in
    --prefix)
        [ $# -gt 1 ] || fail "--prefix needs a directory"
        prefix=$2
        shift
        ;;
    --prefix=*) prefix=${1#*=} ;;
    --list) what=list ;;
    --uninstall) what=uninstall ;;
    -h | --help)
        sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
        exit 0
        ;;
    *) fail "unknown argument $1; --help says what there is" ;;
    esac
    shift
done
case $prefix in
/*) ;;
*) fail "--prefix needs a path from the root: $prefix" ;;
esac
to=${prefix%/}
note=share/doc/rdmatop-bpf/installed
# A file on its way to its place.
part=$note.part
source=$(cd "$(dirname "$0")" && pwd)

# The files of the tarball. Their names have no blanks.
files() {
    (cd "$source" && find bin lib share -type f | LC_ALL=C sort)
}

# The names in the note that stand after the word $1: files and directories that were not there before.
noted() {
    [ ! -f "$to/$note" ] || sed -n "s/^$1 //p" "$to/$note"
}

# Removes directories. One that holds something else by now stays. The last is DIR itself, if it was not
# there.
leave() {
    for directory in $(printf '%s\n' "$@" | LC_ALL=C sort -ru); do
        case $directory in
        .) rmdir "$to" 2>/dev/null || : ;;
        *) rmdir "$to/$directory" 2>/dev/null || : ;;
        esac
    done
}

# The first of the directories written into that belongs to another user than root, or that anybody can write.
untrusted() (
    cd "${to:-/}" 2>/dev/null || cd "$(dirname "$to")" 2>/dev/null || exit 0
    for file in $(files) $note; do
        directory=$(dirname "$file")
        while [ "$directory" != . ]; do
            [ ! -d "$directory" ] || echo "$directory"
            directory=$(dirname "$directory")
        done
    done | LC_ALL=C sort -u |
        xargs sh -c 'find -H . "$@" -maxdepth 0 \( ! -user 0 -o -perm -002 \)' find | head -n 1
)

if [ "$(id -u)" = 0 ] && [ "$what" != list ]; then
    other=$(untrusted)
    [ -z "$other" ] || fail "$to/$other is not root's alone: run it as the user whose it is, or choose another --prefix"
fi

case $what in
list)
    for file in $(files) $note; do
        echo "$to/$file"
    done
    ;;
uninstall)
    [ -f "$to/$note" ] || fail "$to has no $note: this script installed nothing there"
    directories=$(noted directory)
    for file in $(noted file) $note.new $part $note; do
        rm -f "$to/$file"
    done
    leave $directories
    echo "removed from ${to:-/}"
    ;;
install)
    old=$(noted file | tr '\n' ' ')
    # Before anything is written: what others put there would be overwritten now, and removed by --uninstall.
    for file in $(files); do
        case " $old" in
        *" $file "*) continue ;;
        esac
        if [ -e "$to/$file" ] || [ -h "$to/$file" ]; then
            fail "$to/$file is there, and not from this script: remove it, or choose another --prefix"
        fi
    done
    directories=$(noted directory)
    for file in $(files) $note; do
        directory=$(dirname "$file")
        while [ ! -d "$to/$directory" ]; do
            directories="$directories $directory"
            [ "$directory" != . ] || break
            directory=$(dirname "$directory")
        done
    done
    # Until the note is in its place, a run that ends takes its directories away itself.
    take_back() {
        rm -f "$to/$note.new"
        leave $directories
    }
    trap take_back EXIT
    trap 'exit 1' HUP INT TERM
    # The directory above DIR has to be there: nobody would remove it.
    if ! { [ -d "$to/" ] || mkdir "$to"; } || ! mkdir -p "$to/$(dirname $note)"; then
        fail "cannot write below ${to:-/}: run it as root, or choose another --prefix"
    fi
    {
        for file in $(files); do echo "file $file"; done
        for file in $old; do
            [ -f "$source/$file" ] || echo "file $file"
        done
        for directory in $directories; do echo "directory $directory"; done | LC_ALL=C sort -u
    } >"$to/$note.new"
    mv -f "$to/$note.new" "$to/$note"
    # From here on --uninstall removes all that this run has written, whatever ends it.
    trap - EXIT HUP INT TERM
    for file in $(files); do
        mkdir -p "$to/$(dirname "$file")"
        # Not in its place: a program that runs cannot be written to. And not beside it, where nobody would
        # know a part of a file for ours.
        rm -f "$to/$part"
        cp "$source/$file" "$to/$part"
        mv -f "$to/$part" "$to/$file"
    done
    for file in $old; do
        [ -f "$source/$file" ] || rm -f "$to/$file"
    done
    echo "installed below ${to:-/}; $0 --prefix $prefix --uninstall removes it"
    ;;
esac
