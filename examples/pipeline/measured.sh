# Was this city measured?
if grep -qx "$1" measured.txt 2>/dev/null; then
  printf '{"done": true, "result": {"city": "%s", "letters": %s, "unit": "celsius"}}\n' "$1" "${#1}"
else
  echo '{"done": false}'
fi
