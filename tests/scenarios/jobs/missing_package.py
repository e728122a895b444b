"""A job that needs a package nobody installed: it dies before it reads its first record."""

import no_such_package_anywhere

no_such_package_anywhere.main()
