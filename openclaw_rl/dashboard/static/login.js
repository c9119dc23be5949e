// The start link is /login#TOKEN: sign in with it, and take it out of the address at once.
const token = location.hash.slice(1);
if (token) {
  history.replaceState(null, "", location.pathname + location.search);
  document.getElementById("key").value = decodeURIComponent(token);
  document.getElementById("login").submit();
}
